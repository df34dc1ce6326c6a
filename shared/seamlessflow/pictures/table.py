"""How the time was spent, as columns of a table, and figures for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..lanes import Kind, Lanes, Shares
from .rows import Rows

COLUMNS: Mapping[str, Callable[[Shares], float]] = {
    "busy": lambda shares: shares.busy,
    "rollout": lambda shares: shares.share(Kind.ROLLOUT),
    "train": lambda shares: shares.share(Kind.TRAIN),
    "hand-over": lambda shares: shares.share(Kind.HAND_OVER),
    "waiting": lambda shares: shares.share(Kind.WAITING, Kind.TRAIN_WAITING),
    "frozen": lambda shares: shares.share(Kind.FROZEN),
    "idle": lambda shares: shares.share(Kind.IDLE),
    "load": lambda shares: shares.share(Kind.LOAD),
    "away": lambda shares: shares.share(Kind.AWAY),
    "not known": lambda shares: shares.share(Kind.HELD),
}
"""Shares, 0 to 1. ``busy`` is of the time in which the node was there; the others are of all time, and add up to it."""


_ALWAYS = ("busy", "rollout", "train", "hand-over", "waiting", "idle")


def columns_of(rows: Iterable[Shares]) -> dict[str, Callable[[Shares], float]]:
    """The columns that say something of these rows."""
    shown = list(rows)
    return {name: value for name, value in COLUMNS.items() if name in _ALWAYS or any(value(row) for row in shown)}


def percent(share: float) -> str:
    """With as many digits as matter: of small shares, and of those that are nearly everything."""
    digits = 0 if share == 0 or share == 1 else 2 if share < 0.01 else 1
    return f"{100 * share:.{digits}f} %"


def time_unit(seconds: float) -> tuple[float, str]:
    """What an axis of so many seconds counts in: seconds in the unit, and its name."""
    if seconds < 600:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def duration(seconds: float) -> str:
    """For people."""
    unit, words = time_unit(seconds)
    return f"{seconds / unit:.3g} {words}" if unit > 1 else f"{seconds:.1f} s"


def facts(lanes: Lanes, rows: Rows) -> list[str]:
    """A picture in one line."""
    count, steps, shares = len(rows.rows), len(lanes.steps), rows.shares
    return [
        f"{count:,} node{'s' if count != 1 else ''}",
        duration(lanes.end - lanes.start),
        *([f"{steps:,} step{'s' if steps != 1 else ''}"] if steps else []),
        f"busy {percent(shares.busy)}",
        f"hand-over {percent(shares.hand_over)}",
    ]
