"""Which nodes stand where: those that train first, then by name as people count; and what each came to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..lanes import Kind, Lanes, Shares, Span, Window, shares_by_node, steady_window, total

MOST_LETTERS = 20
_TRAINS = {Kind.TRAIN, Kind.TRAIN_WAITING}
_ROLLS_OUT = {Kind.ROLLOUT, Kind.WAITING, Kind.HELD}


@dataclass(frozen=True, slots=True)
class Row:
    """One node."""

    node: str
    spans: tuple[Span, ...]
    shares: Shares
    """In the window of the picture."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that did the same kinds of work."""

    name: str
    rows: tuple[Row, ...]

    @property
    def shares(self) -> Shares:
        return total(row.shares for row in self.rows)


@dataclass(frozen=True, slots=True)
class Rows:
    """All nodes, and the window that figures are of: from the first step to the last one, or everything."""

    groups: tuple[Group, ...]
    window: Window
    window_words: str

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def shares(self) -> Shares:
        return total(row.shares for row in self.rows)


def rows_of(lanes: Lanes) -> Rows:
    """Sorted and grouped; figures are of the steady window where there is one, and of all that is shown of a part."""
    window, words = (lanes.start, lanes.end), "from beginning to end"
    if lanes.zero is not None:
        words = "of what is shown"
    elif (steady := steady_window(lanes)) is not None:
        window, words = steady, "from the first step to the last"
    by_node: dict[str, list[Span]] = {}
    for span in sorted(lanes.spans, key=lambda span: span.start):
        by_node.setdefault(span.node, []).append(span)
    shares = shares_by_node(lanes.spans, window)
    groups: dict[str, list[Row]] = {}
    for node in sorted(by_node, key=natural):
        groups.setdefault(_group(by_node[node]), []).append(Row(node, tuple(by_node[node]), shares[node]))
    order = [name for name in ("train and roll out", "train", "roll out", "neither") if name in groups]
    return Rows(tuple(Group(name, tuple(groups[name])) for name in order), window, words)


def short(name: str) -> str:
    """With room beside a picture: the end of a name tells nodes apart."""
    return name if len(name) <= MOST_LETTERS else f"…{name[1 - MOST_LETTERS :]}"


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which node-2 comes before node-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def full(lanes: Lanes) -> float:
    """How many generations in flight make a node look full: nearly the most that any had."""
    values = sorted(value for series in lanes.node_in_flight.values() for value in series.values if value > 0)
    return values[int(0.98 * (len(values) - 1))] if values else 0.0


def _group(spans: Iterable[Span]) -> str:
    kinds = {span.kind for span in spans}
    trains, rolls_out = bool(kinds & _TRAINS), bool(kinds & _ROLLS_OUT)
    return {(True, True): "train and roll out", (True, False): "train", (False, True): "roll out"}.get(
        (trains, rolls_out), "neither"
    )
