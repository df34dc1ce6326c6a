"""The picture as an image, for slides and documents. Needs matplotlib (extra ``report``); raises ImportError without it.

Each node is a strip of pixels: a column has the mean colour of what happened in its time, so that spans far shorter than a
pixel still show by their share, with 2 nodes as with 10,000.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from seamlessflow.timeline import BUSY, SpanKind, Timeline, TrainStep

from .layout import Rows, Strips, between, facts, percent, rgb, rows_of, short, time_unit
from .palette import LIGHT, WORDS

# What lies over and under the nodes of an image: shares of the fleet, generations, staleness, and the axes of time.


MOST_STEP_LINES = 120


def draw_fleet(axes: Any, strips: Strips, lanes: Timeline) -> None:
    """Stack the share of nodes of each kind over time."""
    times = strips.times - lanes.origin
    kinds = [kind for kind in (*BUSY, *(kind for kind in WORDS if kind not in BUSY)) if strips.total(kind).any()]
    axes.stackplot(times, [strips.total(kind) for kind in kinds], colors=[LIGHT.kinds[kind] for kind in kinds], linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "50", "100 %"], size=8.5)
    _panel(axes, "share of nodes", lanes)


def draw_load(axes: Any, lanes: Timeline) -> None:
    """Plot generations in flight and queued over time."""
    for series, name, colour in ((lanes.in_flight, "in flight", LIGHT.in_flight), (lanes.queued, "queued", LIGHT.queued)):
        if series is not None and len(series.values):
            times = [series.start - lanes.origin + series.width * place for place in range(len(series.values))]
            axes.fill_between(times, series.values, step="post", color=colour, alpha=0.18, linewidth=0)
            axes.step(times, series.values, where="post", color=colour, linewidth=1.1, label=name)
    axes.set_ylim(bottom=0)
    _panel(axes, "generations", lanes)
    _key(axes)


def draw_staleness(axes: Any, lanes: Timeline) -> None:
    """Plot mean and maximal staleness of each step."""
    known = [step for step in lanes.steps if step.staleness_max is not None]
    times = [step.time - lanes.origin for step in known]
    oldest = [step.staleness_max or 0.0 for step in known]
    means = [step.staleness_mean or 0.0 for step in known]
    dots = "o" if len(known) <= MOST_STEP_LINES else ""
    axes.step(times, oldest, where="post", color=LIGHT.rule, linewidth=1.0)
    axes.plot(
        times, oldest, dots or "-", color=LIGHT.staleness, markersize=3.2, markerfacecolor=LIGHT.page, label="oldest token"
    )
    axes.plot(times, means, "-", marker=dots, markersize=3, color=LIGHT.kinds[SpanKind.TRAIN], linewidth=1.2, label="mean")
    axes.set_ylim(-0.12 * max(1.0, *oldest), 1.3 * max(1.0, *oldest))
    _panel(axes, "staleness of trained tokens, in steps", lanes)
    _key(axes)


def _panel(axes: Any, title: str, lanes: Timeline) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT.rule)
    axes.tick_params(left=False, colors=LIGHT.faint, labelsize=8.5)
    _above(axes, title, colour=LIGHT.text, x=0.0, align="left")
    if axes.get_ylim()[1] > 1:
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color=LIGHT.rule, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(lanes.steps) <= MOST_STEP_LINES:
        for step in lanes.steps:
            axes.axvline(step.time - lanes.origin, color=LIGHT.rule, linewidth=0.6, zorder=0)


def _above(axes: Any, words: str, *, colour: str, x: float, align: str) -> None:
    axes.annotate(
        words, (x, 1), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points", ha=align, size=9, color=colour
    )


def _key(axes: Any, num_columns: int = 2) -> None:
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.004, 0.96), frameon=False, fontsize=8.5, handlelength=1.2, labelcolor=LIGHT.text,
        ncols=num_columns, columnspacing=1.4, handletextpad=0.5, borderaxespad=0.1,
    )  # fmt: skip


def draw_times(panels: list[Any], nodes: Any, lanes: Timeline) -> None:
    """Give all panels one time axis, labelled below the last."""
    length = max(lanes.end - lanes.start, 1e-9)
    unit, words = time_unit(lanes.end - lanes.origin)
    panels[0].set_xlim(lanes.start - lanes.origin, lanes.start - lanes.origin + length)
    for axes in panels[:-1]:
        axes.tick_params(bottom=False, labelbottom=False)
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}")
    panels[-1].set_xlabel(f"{words} since the beginning", size=9.5, color=LIGHT.faint)
    panels[-1].tick_params(axis="x", colors=LIGHT.faint, labelsize=9)
    if unit > 1:
        from matplotlib.ticker import MultipleLocator

        panels[-1].xaxis.set_major_locator(MultipleLocator(_round(length / unit / 10) * unit))
    shown = _apart(lanes.steps, length / 40)
    over = nodes.secondary_xaxis("top")
    over.set_xticks([step.time - lanes.origin for step in shown], [str(step.step) for step in shown], size=8)
    over.tick_params(length=2, colors=LIGHT.faint, pad=1)
    over.spines["top"].set_visible(False)
    if shown:
        nodes.annotate(
            "step",
            (0, 1),
            xycoords="axes fraction",
            xytext=(-5, 3),
            textcoords="offset points",
            ha="right",
            size=8,
            color=LIGHT.faint,
        )


def _apart(steps: Sequence[TrainStep], seconds: float) -> list[TrainStep]:
    """Those with room for their number, and not more of them than people read: every one, or each 2nd, 5th, 10th …"""
    every = _round(len(steps) / 30)
    found: list[TrainStep] = []
    for step in steps:
        if (every <= 1 or step.step % every == 0) and (not found or step.time - found[-1].time >= seconds):
            found.append(step)
    return found


def _round(value: float) -> float:
    """The next of 1, 2, 5, 10 …; at least 1."""
    value = max(value, 1.0)
    magnitude = 10.0 ** (len(str(int(value))) - 1)
    return next(magnitude * nice for nice in (1, 2, 5, 10) if magnitude * nice >= value)


# The nodes of an image: strips, names and busy shares.


FEW_LABELS, MOST_LABELS, MOST_STRIPS = 16, 40, 100
"""Nodes with names in a large and in a small type, and with a gap between them. Strips thinner than that touch."""


def draw_nodes(axes: Any, rows: Rows, strips: Strips, lanes: Timeline) -> None:
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


WIDTH_INCHES = 13.33
"""That of a slide."""
DPI = 180
MOST_COLUMNS, LEAST_COLUMNS, MOST_CELLS = 2000, 500, 60_000_000
MANY_NODES = 12
"""From here on a panel shows what share of the nodes did what."""


def write_png(lanes: Timeline, path: Path) -> None:
    """Draw it."""
    with _plain_text():
        _figure(lanes).savefig(path, dpi=DPI, facecolor=LIGHT.page)


def svg(lanes: Timeline) -> str:
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


def _figure(lanes: Timeline) -> Any:
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


def _head(figure: Any, lanes: Timeline, rows: Rows, total: float) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    figure.text(0.115, 1 - 0.3 / total, lanes.title, size=16, weight="bold", color=LIGHT.text, va="center")
    figure.text(
        0.115,
        1 - 0.58 / total,
        f"{' · '.join(facts(lanes, rows))}  ({rows.window_text})",
        size=10.5,
        color=LIGHT.faint,
        va="center",
    )
    present = {span.kind for span in lanes.spans}
    kinds = [kind for kind in WORDS if kind in present]
    handles: list[Any] = [(Patch(color=LIGHT.kinds[kind]),) for kind in kinds]
    labels = [WORDS[kind] for kind in kinds]
    if SpanKind.ROLLOUT in kinds and lanes.node_in_flight:
        few, many, place = rgb(LIGHT.rollout_few), rgb(LIGHT.kinds[SpanKind.ROLLOUT]), kinds.index(SpanKind.ROLLOUT)
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
