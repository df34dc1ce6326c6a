"""Command lines of the fleet benchmarks: lists whose every word is checked, numbers within their limits, and help that teaches.

A word that is not known is refused at once, with all that are: a run of hours that silently played something else is worth less
than none.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from loadtest.report import arguments

from .constants import RATIOS

WORKLOADS = ("single", "agentic")
KINDS = ("stationary", "shifting")
RATIO_WORDS = ",".join(f"{1 / ratio:.3g}" for ratio in RATIOS)

MODES_HELP = """\
Modes (settings and policies over the same services, so that only scheduling differs):
  sync-colocated      all nodes roll out one batch, then all train on it (verl's default): the reference of "times"
  sync-disaggregated  a fixed split; one half waits for the other (OpenRLHF)
  one-step-off        a fixed split; the next batch is rolled out while one is trained on, one version each
  partial-rollout     a fixed split under the staleness bound, new weights under running generations (AReaL, PipelineRL):
                      the best split without lending, which ours are compared with
  idle-lending        the same, and trainers roll out whenever no batch is ready (verl's dynamic_schedule, ROLL)
  multiplexed         ours: a gang of a fixed size that is lent where the gap is worth a hand-over
  auto                ours: finds the gang's size and the lending while it runs; what the figures are of
Of each fixed split the best one is searched for, by simulation, and played."""


def taught(description: str | None, epilog: str) -> argparse.ArgumentParser:
    """A parser with what all benchmarks take, and a longer text behind its options, line for line as it is written."""
    parser = arguments(description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = epilog
    parser.allow_abbrev = False
    return parser


def words(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    """A type: words with commas between them, each one of those that are allowed, each once."""
    known = tuple(allowed)

    def read(given: str) -> list[str]:
        asked = _parts(given)
        if unknown := [word for word in asked if word not in known]:
            raise argparse.ArgumentTypeError(f"no such thing as {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
        return asked

    return read


def numbers(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], list[float]]:
    """A type: numbers with commas between them, from ``least`` (or above it) to ``most``."""
    one = number(least, most, above=above)
    return lambda given: [one(part) for part in _parts(given)]


def number(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """A type: one number from ``least`` (``above``: not it) to ``most``."""

    def read(given: str) -> float:
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not (least < value if above else least <= value) or not value <= most or math.isinf(value):
            raise argparse.ArgumentTypeError(f"{given!r}: expected a number {_limits(least, most, above=above)}")
        return value

    return read


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """A type: one whole number from ``least`` to ``most``."""

    def read(given: str) -> int:
        if not given.strip().isdecimal() or not least <= int(given) <= most:
            raise argparse.ArgumentTypeError(f"{given!r}: expected a whole number {_limits(least, most)}")
        return int(given)

    return read


def wholes(least: int, most: float = math.inf) -> Callable[[str], list[int]]:
    """A type: whole numbers with commas between them."""
    one = whole(least, most)
    return lambda given: [one(part) for part in _parts(given)]


def refuse_unless(parser: argparse.ArgumentParser, options: argparse.Namespace, flag: str, names: Sequence[str]) -> None:
    """End with what is wrong when one of these options was given and the flag, without which they mean nothing, was not."""
    if not getattr(options, flag) and (given := changed(parser, options, names)):
        parser.error(f"{', '.join(given)}: only together with {_typed(flag)}; without it that would be ignored")


def refuse_with(parser: argparse.ArgumentParser, options: argparse.Namespace, flag: str, names: Sequence[str]) -> None:
    """End with what is wrong when one of these options was given beside a flag under which they mean nothing."""
    if getattr(options, flag) and (given := changed(parser, options, names)):
        parser.error(f"{', '.join(given)}: not together with {_typed(flag)}, which would ignore that")


def changed(parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of these options that have not their default, as they are typed."""
    return [_typed(name) for name in names if getattr(options, name) != parser.get_default(name)]


def _typed(name: str) -> str:
    return "--" + name.replace("_", "-")


def prepare(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Make the folder of the results now: after hours it is too late to say that it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as wrong:
        parser.error(f"--results {folder}: nothing can be written there: {wrong}")


def _parts(given: str) -> list[str]:
    parts = list(dict.fromkeys(part.strip() for part in given.split(",")))
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{given!r}: expected words with one comma between two")
    return parts


def _limits(least: float, most: float, *, above: bool = False) -> str:
    low = f"above {least:g}" if above else f"of at least {least:g}"
    return low if math.isinf(most) else f"{low} and at most {most:g}"
