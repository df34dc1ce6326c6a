"""What was measured of each side, as figures: ours beside the best peer of the same run, and everybody over the bare stub."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from loadtest.gateway_load import Load, OpenEndpoints
from loadtest.report import Figure

BARE, OURS = "bare stub server", "ours"
ADDED_GOALS = {"small": 3.5, "large": 8.0}
"""Milliseconds."""
RATE_GOAL = 3.0
LEAST_MS = 0.001
"""Nobody is faster than the upstream; a busy machine can make it look so."""


@dataclass(frozen=True, slots=True)
class Side:
    """Whoever answers calls."""

    name: str
    endpoints: OpenEndpoints
    records: bool = True
    remembers: bool = False
    """A conversation has to be led with it from the beginning."""


@dataclass(slots=True)
class Measured:
    """Of one side and load, by run."""

    milliseconds: list[float] = field(default_factory=list)
    """p50 of calls one after the other."""
    per_second: list[float] = field(default_factory=list)


def figures_of(measured: dict[tuple[str, str], Measured], sides: list[Side], loads: Iterable[Load]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for load in loads:
        by_side = {side.name: measured[side.name, load.name] for side in sides}
        bare = by_side[BARE]
        added = {
            name: [max(time - floor, LEAST_MS) for time, floor in zip(each.milliseconds, bare.milliseconds, strict=True)]
            for name, each in by_side.items()
            if name != BARE
        }
        rivals = [side.name for side in sides if side.records and side.name != OURS]
        quickest = min(rivals, key=lambda name: median(added[name]), default=None)
        best = max(rivals, key=lambda name: median(by_side[name].per_second), default=None)
        reference = (BARE, bare.milliseconds) if quickest is None else (f"{quickest}, added", added[quickest])
        figures[f"added_latency_{load.name}_p50_ms"] = Figure(
            "ms", "lower", added[OURS], *reference, goal=ADDED_GOALS[load.name]
        )
        if best is not None:
            rates = zip(by_side[OURS].per_second, by_side[best].per_second, strict=True)
            ratios = [ours / theirs for ours, theirs in rates]
            figures[f"throughput_{load.name}_vs_best_peer"] = Figure(
                "x", "higher", ratios, best, [1.0] * len(ratios), goal=RATE_GOAL
            )
        for name, each in by_side.items():
            figures[f"{_key(name)}_throughput_{load.name}"] = Figure("1/s", "higher", each.per_second, BARE, bare.per_second)
            if name not in (BARE, OURS):
                key = f"{_key(name)}_added_latency_{load.name}_p50_ms"
                figures[key] = Figure("ms", "lower", added[name], BARE, bare.milliseconds)
    return figures


def _key(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")
