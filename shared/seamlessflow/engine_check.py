"""The self-check of an engine: does it sample from the weights it reports, and is that what a trainer would learn from?

order ──▶ python -m seamlessflow_rollout_worker.engine_check ──▶ EngineReport ──┐
  └─────▶ python -m seamlessflow_trainer.engine_check ──▶ TrainerReport ────────┴──▶ judge ──▶ checks, ``doctor --engine``

records     what travels between the processes, as JSON files: each needs packages that the others do not have
process     one of them: from an order's file to a report's
judgement   numbers into verdicts; pure
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from .errors import SeamlessFlowError
from .logprob_gap import gap_limit

# What the processes of an engine's self-check hand each other, as JSON files.


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")
    # A logprob that is not a number is a finding, and travels like any other.


class EngineOrder(_Part):
    """What an engine is put through."""

    document: dict[str, Any]
    """A run document: its model section and its slots determine the engine."""
    folder: Path
    """The model."""
    scratch: Path
    """An empty folder: ``base`` and ``other`` are made in it, model folders of the served precision."""
    prompts: tuple[str, ...]
    num_tokens: int
    """Sampled of each prompt."""
    temperature: float
    """Of what is drawn; the rest is greedy."""
    seed: int = 0


class Sampled(_Part):
    """One continuation, as the engine reported it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Of each token: the weights version that the engine reports."""
    finish: str


class EngineReport(_Part):
    """What came out. Greedy continuations of the same prompts, one at a time, so that their arithmetic is the same:"""

    first: tuple[Sampled, ...]
    """By the engine as it was loaded."""
    interrupted: tuple[Sampled, ...]
    """With the same weights published again in the middle of each."""
    other: tuple[Sampled, ...]
    """After an update to other weights."""
    again: tuple[Sampled, ...]
    """After an update back to the first weights."""
    other_fresh: tuple[Sampled, ...]
    """By an engine that was loaded with the other weights."""
    drawn: tuple[Sampled, ...]
    """All at once, at ``temperature``, each with a seed, with the same weights published again in the middle."""
    num_before: tuple[int, ...]
    """Tokens that each of ``drawn`` had reported when its engine was paused."""
    num_while_paused: int
    """Tokens that were reported between pause and resume."""
    drawn_versions: tuple[int, int]
    """Before and after the update in the middle."""
    start_seconds: float
    stage_seconds: float
    """To read a version ahead, which an update does beside sampling."""
    pause_seconds: float
    """Of the update in the middle, from asking for the pause until it had resumed."""
    dtype: str
    """Served precision."""


class TrainerOrder(_Part):
    """Samples to take a step on, at learning rate 0."""

    document: dict[str, Any]
    base: Path
    other: Path
    drawn: tuple[Sampled, ...]
    temperature: float
    greedy: tuple[Sampled, ...]
    """Of ``base``; the logprobs of greedy tokens are those at temperature 1."""
    greedy_of_other: tuple[Sampled, ...]


class GapFigures(_Part):
    """Trainer against engine over some tokens, nats."""

    mean: float
    largest: float
    num_tokens: int


class TrainerReport(_Part):
    """What a trainer's forward pass makes of them."""

    drawn: GapFigures
    greedy: GapFigures
    greedy_of_other: GapFigures
    stale: GapFigures
    """What an engine would show that samples ``other`` while the trainer has ``base``: how far off is told apart."""
    num_tensors: int
    num_changed: int
    """Tensors in which a step at learning rate 0 changed a bit."""
    dtype: str
    """Computed in."""


# Numbers of an engine's self-check into verdicts. Pure.


SAME_WITHIN = {"float32": 1e-3, "bfloat16": 0.05}
"""Nats. Two greedy continuations under the same weights: the same tokens, and logprobs as close as rounding lets them be where
the work was cut up differently (a prefix that was cached, for example). Other precisions: as bfloat16."""
APART_TIMES = 10
"""Other weights must move logprobs by so many times that, or the check could not tell them from the first ones."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. ``is_right`` None: told, not judged."""

    name: str
    found: str
    allowed: str
    is_right: bool | None


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two sets of continuations are."""

    num_tokens: int
    num_same: int
    """Tokens up to the first different one of each pair."""
    largest: float
    """Difference of logprobs over those; not a number where one of them is none."""
    mean: float

    def is_same(self, within: float) -> bool:
        """Whether all tokens agree, with logprobs at most ``within`` apart."""
        return self.num_same == self.num_tokens and self.largest <= within


def likeness(left: Sequence[Sampled], right: Sequence[Sampled]) -> Likeness:
    """Pairs in order. Raises ValueError where there are not as many of both."""
    gaps, num_tokens = [], 0
    for mine, theirs in zip(left, right, strict=True):
        num_tokens += max(len(mine.tokens), len(theirs.tokens))
        for place, (a, b) in enumerate(zip(mine.tokens, theirs.tokens, strict=False)):
            if a != b:
                break
            gaps.append(abs(mine.logprobs[place] - theirs.logprobs[place]))
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    return Likeness(num_tokens, len(gaps), mean if math.isnan(mean) else max(gaps, default=0.0), mean)


def judge(engine: EngineReport, trainer: TrainerReport) -> list[Check]:
    """All checks, in the order in which a person should read them."""
    return [*_logprobs(engine, trainer), *_update(engine), *_identity(engine), *_told(engine)]


def all_right(checks: Sequence[Check]) -> bool:
    """Whether no check failed; a check without a result does not fail."""
    return all(check.is_right is not False for check in checks)


def _logprobs(engine: EngineReport, trainer: TrainerReport) -> list[Check]:
    limit = gap_limit(engine.dtype)
    checks = [
        Check(f"logprobs against the trainer's, {name}", _gap(figures), f"mean ≤ {limit:g}", figures.mean <= limit)
        for name, figures in (
            ("greedy", trainer.greedy),
            ("drawn at a temperature", trainer.drawn),
            ("after an update to other weights", trainer.greedy_of_other),
        )
    ]
    stale = trainer.stale.mean
    step = f"{trainer.num_changed} of {trainer.num_tensors} tensors changed"
    return [
        *checks,
        Check("what an engine with other weights would show", _gap(trainer.stale), f"mean > {limit:g}", stale > limit),
        Check("a step at learning rate 0", step, "0", trainer.num_changed == 0),
    ]


def _update(engine: EngineReport) -> list[Check]:
    before, after = engine.drawn_versions
    wanted = max(len(each.tokens) for each in engine.drawn)
    whole = sum(each.finish == "length" and len(each.tokens) == wanted for each in engine.drawn)
    exact = sum(
        list(each.versions) == [before] * count + [after] * (len(each.tokens) - count)
        for each, count in zip(engine.drawn, engine.num_before, strict=True)
    )
    total = len(engine.drawn)
    both = sum(0 < count < len(each.tokens) for each, count in zip(engine.drawn, engine.num_before, strict=True))
    return [
        Check("generations that an update in their middle ended", str(total - whole), "0", whole == total),
        Check("tokens sampled while paused", str(engine.num_while_paused), "0", engine.num_while_paused == 0),
        Check(
            f"generations whose tokens have the version that drew them ({both} of them have two)",
            f"{exact} of {total}",
            "all, one with two",
            exact == total and both > 0,
        ),
    ]


def _identity(engine: EngineReport) -> list[Check]:
    within = SAME_WITHIN.get(engine.dtype, SAME_WITHIN["bfloat16"])
    pairs = (
        ("same weights published again in the middle, against a freshly loaded engine", engine.interrupted, engine.first),
        ("other weights, updated to against freshly loaded (no cache of another version)", engine.other, engine.other_fresh),
        ("first weights, updated back to against freshly loaded", engine.again, engine.first),
    )
    checks = []
    for name, ours, fresh in pairs:
        found = likeness(ours, fresh)
        shown = f"{found.num_same} of {found.num_tokens} tokens, logprobs within {found.largest:.2g}"
        is_met = ours is not engine.interrupted or any(len(set(each.versions)) > 1 for each in ours)
        shown += "" if is_met else "; none was interrupted"
        checks.append(Check(name, shown, f"all, within {within:g}", found.is_same(within) and is_met))
    return checks


def _told(engine: EngineReport) -> list[Check]:
    apart = likeness(engine.other, engine.first)
    within = SAME_WITHIN.get(engine.dtype, SAME_WITHIN["bfloat16"])
    is_apart = apart.num_same < apart.num_tokens or apart.largest > APART_TIMES * within
    shown = f"{apart.num_same} of {apart.num_tokens} tokens the same, logprobs within {apart.largest:.2g}"
    return [
        Check("other weights are told from the first ones", shown, "not the same", is_apart),
        Check("started in", f"{engine.start_seconds:.1f} s", "", None),
        Check("update: read ahead", f"{engine.stage_seconds:.3f} s", "", None),
        Check("update: pause", f"{engine.pause_seconds:.3f} s", "", None),
    ]


def _gap(figures: GapFigures) -> str:
    return f"mean {figures.mean:.2g}, largest {figures.largest:.2g} nats ({figures.num_tokens} tokens)"


# One process of an engine's self-check: an order in a file, a report in another.


Order = TypeVar("Order", bound=BaseModel)


def report_on_order(arguments: Sequence[str], kind: type[Order], run: Callable[[Order], BaseModel]) -> int:
    """``arguments``: the files of the order and of the report. Returns the exit code; 2, with the reason on standard error, for
    what ``run`` refuses.
    """
    order_file, report_file = map(Path, arguments)
    try:
        report = run(kind.model_validate_json(order_file.read_text()))
    except SeamlessFlowError as wrong:
        print(f"{type(wrong).__name__}: {wrong}", file=sys.stderr)
        return 2
    report_file.write_text(report.model_dump_json())
    return 0
