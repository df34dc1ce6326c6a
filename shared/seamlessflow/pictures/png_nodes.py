"""The nodes of an image: strips, names and busy shares."""

from __future__ import annotations

from typing import Any

from ..lanes import Lanes
from .palette import LIGHT
from .png_panels import MOST_STEP_LINES
from .rows import Rows, short
from .strips import Strips
from .table import percent

FEW_LABELS, MOST_LABELS, MOST_STRIPS = 16, 40, 100
"""Nodes with names in a large and in a small type, and with a gap between them. Strips thinner than that touch."""


def draw_nodes(axes: Any, rows: Rows, strips: Strips, lanes: Lanes) -> None:
    """A strip for each node; names and busy shares beside them, of groups where nodes are too many to name."""
    num_nodes = max(len(rows.rows), 1)
    if rows.rows and lanes.end > lanes.start:
        extent = (lanes.start - lanes.origin, lanes.end - lanes.origin, num_nodes, 0)
        smoothed = "nearest" if num_nodes <= MOST_STRIPS else "auto"
        axes.imshow(strips.image(LIGHT), extent=extent, aspect="auto", interpolation=smoothed)
    axes.set_ylim(num_nodes, 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False, colors=LIGHT.text)
    if num_nodes <= MOST_STRIPS:  # thin gaps between the strips
        for edge in range(1, num_nodes):
            axes.axhline(edge, color=LIGHT.page, linewidth=2.2 if num_nodes <= MOST_LABELS else 0.6)
    (_name_nodes if num_nodes <= MOST_LABELS else _name_groups)(axes, rows)
    if len(lanes.steps) <= MOST_STEP_LINES:
        for step in lanes.steps:
            axes.axvline(step.time - lanes.origin, color=LIGHT.page, linewidth=0.9, alpha=0.75)


def _name_nodes(axes: Any, rows: Rows) -> None:
    size = 9.5 if len(rows.rows) <= FEW_LABELS else 7
    middles = [place + 0.5 for place in range(len(rows.rows))]
    axes.set_yticks(middles, [short(row.node) for row in rows.rows], size=size)
    for middle, row in zip(middles, rows.rows, strict=True):
        _beside(axes, middle, f"{100 * row.shares.busy:.0f} %", size=size)
    _beside(axes, 0.0, "busy", size=size, va="bottom")


def _name_groups(axes: Any, rows: Rows) -> None:
    middles, at = list[float](), 0
    for group in rows.groups:
        middles.append(at + len(group.rows) / 2)
        at += len(group.rows)
        if at < len(rows.rows):
            axes.axhline(at, color=LIGHT.text, linewidth=0.8)
    axes.set_yticks(middles, [f"{group.name}\n{len(group.rows):,} nodes" for group in rows.groups], size=9)
    for middle, group in zip(middles, rows.groups, strict=True):
        _beside(axes, middle, f"{percent(group.shares.busy)}\nbusy", size=9)


def _beside(axes: Any, place: float, words: str, *, size: float, va: str = "center") -> None:
    axes.annotate(
        words, (1, place), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points", va=va, size=size,
        color=LIGHT.faint,
    )  # fmt: skip
