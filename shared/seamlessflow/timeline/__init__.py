"""What every node did, when: a run's journal folded into spans, and the spans' shares. Pure; ``pictures`` draws them.

LanesFold ◀── (event, time) of a journal, in order          simulator ──▶ Lanes(title, start, end, spans, ...)
    └─▶ lanes(title) ─▶ Lanes ─▶ shares_by_node(spans, window) ─▶ a table
                          └────▶ pictures.write_html, pictures.write_png
"""

from .journal_fold import READS, LanesFold
from .spans import BUSY, Kind, Lanes, Series, Span, Step
from .utilization import Shares, Window, shares_by_node, steady_window, total

__all__ = [
    "BUSY", "READS", "Kind", "Lanes", "LanesFold", "Series", "Shares", "Span", "Step", "Window", "shares_by_node",
    "steady_window", "total",
]  # fmt: skip
