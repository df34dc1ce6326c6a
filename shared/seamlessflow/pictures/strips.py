"""Nodes as strips of columns: what share of each column's time each kind had, and how much was in flight. Needs numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..lanes import Kind, Lanes, Series, Span
from .palette import WORDS, Palette
from .rows import Rows, full

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.floating]

KINDS = tuple(WORDS)


@dataclass(frozen=True)
class Strips:
    """``shares_NKC``: [nodes, kinds, columns]; ``fullness_NC``: 0 to 1, of the most that any node has in flight."""

    shares_NKC: Floats
    fullness_NC: Floats
    times: Floats
    """[C] middles of the columns."""

    @classmethod
    def of(cls, rows: Rows, lanes: Lanes, num_columns: int) -> Strips:
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
                rolled = shares[place, KINDS.index(Kind.ROLLOUT)]
                mean = _means(series, edges) / most
                fullness[place] = np.clip(mean / np.maximum(rolled, 0.05), 0, 1)
        return cls(shares, fullness, (edges[1:] + edges[:-1]) / 2)

    def total(self, kind: Kind) -> Floats:
        """[C] share of the nodes."""
        found: Floats = self.shares_NKC[:, KINDS.index(kind)].mean(axis=0) if len(self.shares_NKC) else self.times * 0
        return found

    def image(self, palette: Palette) -> Floats:
        """[N, C, 3], 0 to 1. What no span covers has the colour of AWAY."""
        import numpy as np

        colours = np.array([rgb(palette.kinds[kind]) for kind in KINDS], dtype=np.float32)
        rollout = KINDS.index(Kind.ROLLOUT)
        others = self.shares_NKC.copy()
        others[:, rollout] = 0
        image = np.einsum("nkc,kx->ncx", others, colours)
        few, many = (np.array(rgb(each), dtype=np.float32) for each in (palette.rollout_few, palette.kinds[Kind.ROLLOUT]))
        shade = few + (many - few) * self.fullness_NC[..., None]
        image += self.shares_NKC[:, rollout, :, None] * shade
        image += np.clip(1 - self.shares_NKC.sum(axis=1), 0, 1)[..., None] * colours[KINDS.index(Kind.AWAY)]
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
