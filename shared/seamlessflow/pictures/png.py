"""The picture as an image, for slides and documents. Needs matplotlib (extra ``report``); raises ImportError without it.

Each node is a strip of pixels: a column has the mean colour of what happened in its time, so that spans far shorter than a
pixel still show by their share, with 2 nodes as with 10,000.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..lanes import Kind, Lanes
from .palette import LIGHT, WORDS
from .png_nodes import draw_nodes
from .png_panels import draw_fleet, draw_load, draw_staleness, draw_times
from .rows import Rows, rows_of
from .strips import Strips, between, rgb
from .table import facts

WIDTH_INCHES = 13.33
"""That of a slide."""
DPI = 180
MOST_COLUMNS, LEAST_COLUMNS, MOST_CELLS = 2000, 500, 60_000_000
MANY_NODES = 12
"""From here on a panel shows what share of the nodes did what."""


def write_png(lanes: Lanes, path: Path) -> None:
    """Draw it."""
    with _plain_text():
        _figure(lanes).savefig(path, dpi=DPI, facecolor=LIGHT.page)


def svg(lanes: Lanes) -> str:
    """The same as an ``<svg>`` element, for reports."""
    out = io.StringIO()
    with _plain_text():
        _figure(lanes).savefig(out, format="svg", dpi=DPI, facecolor="none", metadata={"Date": None})
    _, tag, rest = out.getvalue().partition("<svg")
    return tag + rest


def _plain_text() -> AbstractContextManager[Any]:
    """Names and titles are written as they are: a "$" in one begins no formula, and breaks nothing."""
    from matplotlib import rc_context

    return rc_context({"text.parse_math": False, "text.usetex": False})


def _figure(lanes: Lanes) -> Any:
    from matplotlib.figure import Figure

    rows = rows_of(lanes)
    num_nodes = max(len(rows.rows), 1)
    heights = {"nodes": min(max(0.36 * num_nodes, 0.7), 3.6)}
    if num_nodes > MANY_NODES:
        heights = {"fleet": 0.75, **heights}
    if lanes.queued is not None or lanes.in_flight is not None:
        heights["load"] = 0.85
    if any(step.staleness_max is not None for step in lanes.steps):
        heights["staleness"] = 0.65
    top, bottom, gap = 1.2, 0.5, 0.36
    total = sum(heights.values()) + gap * (len(heights) - 1) + top + bottom
    figure = Figure(figsize=(WIDTH_INCHES, total))
    at, axes = total - top, dict[str, Any]()
    for name, height in heights.items():
        shared = next(iter(axes.values()), None)
        axes[name] = figure.add_axes((0.115, (at - height) / total, 0.81, height / total), sharex=shared)
        at -= height + gap
    num_columns = max(LEAST_COLUMNS, min(MOST_COLUMNS, MOST_CELLS // (len(WORDS) * num_nodes)))
    strips = Strips.of(rows, lanes, num_columns)
    _head(figure, lanes, rows, total)
    draw_nodes(axes["nodes"], rows, strips, lanes)
    if "fleet" in axes:
        draw_fleet(axes["fleet"], strips, lanes)
    if "load" in axes:
        draw_load(axes["load"], lanes)
    if "staleness" in axes:
        draw_staleness(axes["staleness"], lanes)
    draw_times(list(axes.values()), axes["nodes"], lanes)
    return figure


def _head(figure: Any, lanes: Lanes, rows: Rows, total: float) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    figure.text(0.115, 1 - 0.3 / total, lanes.title, size=16, weight="bold", color=LIGHT.text, va="center")
    figure.text(
        0.115,
        1 - 0.58 / total,
        f"{' · '.join(facts(lanes, rows))}  ({rows.window_words})",
        size=10.5,
        color=LIGHT.faint,
        va="center",
    )
    present = {span.kind for span in lanes.spans}
    kinds = [kind for kind in WORDS if kind in present]
    handles: list[Any] = [(Patch(color=LIGHT.kinds[kind]),) for kind in kinds]
    labels = [WORDS[kind] for kind in kinds]
    if Kind.ROLLOUT in kinds and lanes.node_in_flight:
        few, many, place = rgb(LIGHT.rollout_few), rgb(LIGHT.kinds[Kind.ROLLOUT]), kinds.index(Kind.ROLLOUT)
        shades = (between(few, many, level) for level in (0.0, 0.33, 0.67, 1.0))
        handles[place] = tuple(Patch(color=shade) for shade in shades)
        labels[place] = "rollout, few to many in flight"
    if not kinds:
        return
    legend = figure.legend(
        handles=handles, labels=labels, loc="center left", bbox_to_anchor=(0.109, 1 - 0.86 / total), ncols=len(kinds),
        frameon=False, fontsize=9, handlelength=1.6, handleheight=0.9, columnspacing=1.4, handletextpad=0.5,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_color(LIGHT.text)
