"""What every node did, when: a run's journal folded into spans, and the spans' shares. Pure; ``pictures`` draws them.

LanesFold ◀── (event, time) of a journal, in order          simulator ──▶ Lanes(title, start, end, spans, ...)
    └─▶ lanes(title) ─▶ Lanes ─▶ shares_by_node(spans, window) ─▶ a table
                          └────▶ pictures.write_html, pictures.write_png
"""

from .journal_fold import READS, TimelineFold
from .spans import BUSY, Series, Span, SpanKind, Timeline, TrainStep
from .utilization import Shares, Window, shares_by_node, steady_window, total

__all__ = [
    "BUSY",
    "READS",
    "Series",
    "Shares",
    "Span",
    "SpanKind",
    "Timeline",
    "TimelineFold",
    "TrainStep",
    "Window",
    "shares_by_node",
    "steady_window",
    "total",
]  # fmt: skip
