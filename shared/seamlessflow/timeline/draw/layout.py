"""Which nodes stand where: those that train first, then by name as people count; and what each came to. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seamlessflow.timeline import Series, Shares, Span, SpanKind, Timeline, Window, shares_by_node, steady_window, total

from .palette import WORDS, Palette

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.floating]


MOST_LETTERS = 20
_TRAINS = {SpanKind.TRAIN, SpanKind.TRAIN_WAITING}
_ROLLS_OUT = {SpanKind.ROLLOUT, SpanKind.WAITING, SpanKind.HELD}


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One node."""

    node: str
    spans: tuple[Span, ...]
    shares: Shares
    """In the window of the picture."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Nodes that did the same kinds of work."""

    name: str
    rows: tuple[TimelineRow, ...]

    @property
    def shares(self) -> Shares:
        """Time of all rows of the group, by kind."""
        return total(row.shares for row in self.rows)


@dataclass(frozen=True, slots=True)
class Rows:
    """All nodes, and the window that figures are of: from the first step to the last one, or everything."""

    groups: tuple[RowGroup, ...]
    window: Window
    window_text: str

    @property
    def rows(self) -> list[TimelineRow]:
        """The rows of all groups, in order."""
        return [row for group in self.groups for row in group.rows]

    @property
    def shares(self) -> Shares:
        """Time of all rows, by kind."""
        return total(row.shares for row in self.rows)


def rows_of(lanes: Timeline) -> Rows:
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
    groups: dict[str, list[TimelineRow]] = {}
    for node in sorted(by_node, key=natural):
        groups.setdefault(_group(by_node[node]), []).append(TimelineRow(node, tuple(by_node[node]), shares[node]))
    order = [name for name in ("train and roll out", "train", "roll out", "neither") if name in groups]
    return Rows(tuple(RowGroup(name, tuple(groups[name])) for name in order), window, words)


def short(name: str) -> str:
    """With room beside a picture: the end of a name tells nodes apart."""
    return name if len(name) <= MOST_LETTERS else f"…{name[1 - MOST_LETTERS :]}"


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which node-2 comes before node-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def full(lanes: Timeline) -> float:
    """How many generations in flight make a node look full: nearly the most that any had."""
    values = sorted(value for series in lanes.node_in_flight.values() for value in series.values if value > 0)
    return values[int(0.98 * (len(values) - 1))] if values else 0.0


def _group(spans: Iterable[Span]) -> str:
    kinds = {span.kind for span in spans}
    trains, rolls_out = bool(kinds & _TRAINS), bool(kinds & _ROLLS_OUT)
    return {(True, True): "train and roll out", (True, False): "train", (False, True): "roll out"}.get(
        (trains, rolls_out), "neither"
    )


# Nodes as strips of columns: what share of each column's time each kind had, and how much was in flight. Needs numpy.


KINDS = tuple(WORDS)


@dataclass(frozen=True)
class Strips:
    """``shares_NKC``: [nodes, kinds, columns]; ``fullness_NC``: 0 to 1, of the most that any node has in flight."""

    shares_NKC: Floats
    fullness_NC: Floats
    times: Floats
    """[C] middles of the columns."""

    @classmethod
    def of(cls, rows: Rows, lanes: Timeline, num_columns: int) -> Strips:
        """Cut the picture's time into equal columns."""
        import numpy as np

        edges = np.linspace(lanes.start, max(lanes.end, lanes.start + 1e-9), num_columns + 1)
        nodes = rows.rows
        shares = np.zeros((len(nodes), len(KINDS), num_columns), dtype=np.float32)
        fullness = np.ones((len(nodes), num_columns), dtype=np.float32)
        most = full(lanes)
        for place, row in enumerate(nodes):
            for span in row.spans:
                _add(shares[place, KINDS.index(span.kind)], span, edges)
            series = lanes.node_in_flight.get(row.node)
            if series is not None and most:
                rolled = shares[place, KINDS.index(SpanKind.ROLLOUT)]
                mean = _means(series, edges) / most
                fullness[place] = np.clip(mean / np.maximum(rolled, 0.05), 0, 1)
        return cls(shares, fullness, (edges[1:] + edges[:-1]) / 2)

    def total(self, kind: SpanKind) -> Floats:
        """[C] share of the nodes."""
        found: Floats = self.shares_NKC[:, KINDS.index(kind)].mean(axis=0) if len(self.shares_NKC) else self.times * 0
        return found

    def image(self, palette: Palette) -> Floats:
        """[N, C, 3], 0 to 1. What no span covers has the colour of AWAY."""
        import numpy as np

        colours = np.array([rgb(palette.kinds[kind]) for kind in KINDS], dtype=np.float32)
        rollout = KINDS.index(SpanKind.ROLLOUT)
        others = self.shares_NKC.copy()
        others[:, rollout] = 0
        image = np.einsum("nkc,kx->ncx", others, colours)
        few, many = (np.array(rgb(each), dtype=np.float32) for each in (palette.rollout_few, palette.kinds[SpanKind.ROLLOUT]))
        shade = few + (many - few) * self.fullness_NC[..., None]
        image += self.shares_NKC[:, rollout, :, None] * shade
        image += np.clip(1 - self.shares_NKC.sum(axis=1), 0, 1)[..., None] * colours[KINDS.index(SpanKind.AWAY)]
        clipped: Floats = np.clip(image, 0, 1)
        return clipped


def rgb(colour: str) -> tuple[float, float, float]:
    """Of ``#rrggbb``, 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def between(few: tuple[float, float, float], many: tuple[float, float, float], level: float) -> tuple[float, float, float]:
    """A colour on the way from one to another: 0 is the first, 1 the second."""
    red, green, blue = (a + (b - a) * level for a, b in zip(few, many, strict=True))
    return red, green, blue


def _add(shares_C: Floats, span: Span, edges: Floats) -> None:
    width = edges[1] - edges[0]
    low, high = (span.start - edges[0]) / width, (span.end - edges[0]) / width
    low, high = max(low, 0.0), min(high, float(len(shares_C)))
    first, last = int(low), min(int(high), len(shares_C) - 1)
    if high <= low:
        return
    if first == last:
        shares_C[first] += high - low
        return
    shares_C[first] += first + 1 - low
    shares_C[first + 1 : last] += 1
    shares_C[last] += high - last


def _means(series: Series, edges: Floats) -> Floats:
    """Of a series over each column: by the difference of its running sum."""
    import numpy as np

    sums = np.concatenate(([0.0], np.cumsum(np.asarray(series.values, dtype=np.float64)) * series.width))
    at = series.start + series.width * np.arange(len(sums))
    found: Floats = np.diff(np.interp(edges, at, sums)) / (edges[1] - edges[0])
    return found


# How the time was spent, as columns of a table, and figures for people. Pure.


COLUMNS: Mapping[str, Callable[[Shares], float]] = {
    "busy": lambda shares: shares.busy,
    "rollout": lambda shares: shares.share(SpanKind.ROLLOUT),
    "train": lambda shares: shares.share(SpanKind.TRAIN),
    "hand-over": lambda shares: shares.share(SpanKind.HAND_OVER),
    "waiting": lambda shares: shares.share(SpanKind.WAITING, SpanKind.TRAIN_WAITING),
    "frozen": lambda shares: shares.share(SpanKind.FROZEN),
    "idle": lambda shares: shares.share(SpanKind.IDLE),
    "load": lambda shares: shares.share(SpanKind.LOAD),
    "away": lambda shares: shares.share(SpanKind.AWAY),
    "not known": lambda shares: shares.share(SpanKind.HELD),
}
"""Shares, 0 to 1. ``busy`` is of the time in which the node was there; the others are of all time, and add up to it."""


_ALWAYS = ("busy", "rollout", "train", "hand-over", "waiting", "idle")


def columns_of(rows: Iterable[Shares]) -> dict[str, Callable[[Shares], float]]:
    """The columns with a value in any of these rows."""
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


def facts(lanes: Timeline, rows: Rows) -> list[str]:
    """A picture in one line."""
    count, steps, shares = len(rows.rows), len(lanes.steps), rows.shares
    return [
        f"{count:,} node{'s' if count != 1 else ''}",
        duration(lanes.end - lanes.start),
        *([f"{steps:,} step{'s' if steps != 1 else ''}"] if steps else []),
        f"busy {percent(shares.busy)}",
        f"hand-over {percent(shares.hand_over)}",
    ]
