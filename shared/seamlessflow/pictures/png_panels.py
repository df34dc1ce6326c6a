"""What lies over and under the nodes of an image: shares of the fleet, generations, staleness, and the axes of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..lanes import BUSY, Kind, Lanes, Step
from .palette import LIGHT, WORDS
from .strips import Strips
from .table import time_unit

MOST_STEP_LINES = 120


def draw_fleet(axes: Any, strips: Strips, lanes: Lanes) -> None:
    times = strips.times - lanes.origin
    kinds = [kind for kind in (*BUSY, *(kind for kind in WORDS if kind not in BUSY)) if strips.total(kind).any()]
    axes.stackplot(times, [strips.total(kind) for kind in kinds], colors=[LIGHT.kinds[kind] for kind in kinds], linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "50", "100 %"], size=8.5)
    _panel(axes, "share of nodes", lanes)


def draw_load(axes: Any, lanes: Lanes) -> None:
    for series, name, colour in ((lanes.in_flight, "in flight", LIGHT.in_flight), (lanes.queued, "queued", LIGHT.queued)):
        if series is not None and len(series.values):
            times = [series.start - lanes.origin + series.width * place for place in range(len(series.values))]
            axes.fill_between(times, series.values, step="post", color=colour, alpha=0.18, linewidth=0)
            axes.step(times, series.values, where="post", color=colour, linewidth=1.1, label=name)
    axes.set_ylim(bottom=0)
    _panel(axes, "generations", lanes)
    _key(axes)


def draw_staleness(axes: Any, lanes: Lanes) -> None:
    known = [step for step in lanes.steps if step.staleness_max is not None]
    times = [step.time - lanes.origin for step in known]
    oldest = [step.staleness_max or 0.0 for step in known]
    means = [step.staleness_mean or 0.0 for step in known]
    dots = "o" if len(known) <= MOST_STEP_LINES else ""
    axes.step(times, oldest, where="post", color=LIGHT.rule, linewidth=1.0)
    axes.plot(
        times, oldest, dots or "-", color=LIGHT.staleness, markersize=3.2, markerfacecolor=LIGHT.page, label="oldest token"
    )
    axes.plot(times, means, "-", marker=dots, markersize=3, color=LIGHT.kinds[Kind.TRAIN], linewidth=1.2, label="mean")
    axes.set_ylim(-0.12 * max(1.0, *oldest), 1.3 * max(1.0, *oldest))
    _panel(axes, "staleness of trained tokens, in steps", lanes)
    _key(axes)


def _panel(axes: Any, title: str, lanes: Lanes) -> None:
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


def draw_times(panels: list[Any], nodes: Any, lanes: Lanes) -> None:
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


def _apart(steps: Sequence[Step], seconds: float) -> list[Step]:
    """Those with room for their number, and not more of them than people read: every one, or each 2nd, 5th, 10th …"""
    every = _round(len(steps) / 30)
    found: list[Step] = []
    for step in steps:
        if (every <= 1 or step.step % every == 0) and (not found or step.time - found[-1].time >= seconds):
            found.append(step)
    return found


def _round(value: float) -> float:
    """The next of 1, 2, 5, 10 …; at least 1."""
    value = max(value, 1.0)
    magnitude = 10.0 ** (len(str(int(value))) - 1)
    return next(magnitude * nice for nice in (1, 2, 5, 10) if magnitude * nice >= value)
