"""The terminal: one kind of console for all verbs, and what a followed run looks like."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

import structlog
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from seamlessflow.reports.run_view import RunView

SPARKS = "▁▂▃▄▅▆▇█"
COLUMNS_BESIDE_CURVE = 60
"""Of the window: labels, elapsed time and what else stands beside the curve of rewards."""
SHORTEST_CURVE, LONGEST_CURVE = 8, 60
PIPE_COLUMNS = 1000
"""A pipe has no width: nothing wraps there, one line stays one line."""


def make_console() -> Console:
    """For people on a terminal, plain lines elsewhere."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    # FORCE_COLOR, which CI systems set, would put a live table into the log.
    return Console(highlight=False, soft_wrap=True, width=PIPE_COLUMNS, force_terminal=False)


def log_to_stderr() -> None:
    """Library warnings go to standard error: what a verb prints on standard output may be read by a program."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        # Looked up at each use: while a live table is shown, rich puts itself in its place.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def run_screen(view: RunView, *, steps: int, elapsed: str, notes: Iterable[str], columns: int) -> Group:
    """The live table below the lines that scroll by. ``steps``: how many the run wants; notes: what to point out.

    ``columns``: width of the window; the curve of rewards takes what the rest leaves, and older steps have to go.
    """
    longest = min(max(columns - COLUMNS_BESIDE_CURVE, SHORTEST_CURVE), LONGEST_CURVE)
    rewards = [row.metrics.get("reward", 0.0) for row in view.steps][-longest:]
    curve = "".join(SPARKS[min(int(max(r, 0) * 8), 7)] for r in rewards)
    head = Table.grid(padding=(0, 2))
    head.add_row("step", f"{view.step}/{steps}", "reward", curve or "-", "elapsed", elapsed)
    head.add_row(
        "episodes", f"{view.running_episodes} running",
        "tokens", f"{view.sampled_tokens:,} ({view.tokens_per_second():.0f}/s)",
        "pauses", f"{len(view.pauses)} ({1000 * sum(s for _, s in view.pauses):.0f} ms)",
    )  # fmt: skip
    ages = ", ".join(f"{age}: {n:,}" for age, n in sorted(view.staleness.items()))
    roles = ", ".join(f"{node}: {role.value}" for node, (role, _) in sorted(view.roles.items()) if role.value != "serve")
    evaluation = " ".join(f"{r} {view.evaluation_done[r]}/{n}" for r, n in view.evaluation_opened.items())
    head.add_row("staleness", ages or "-", "roles", roles or "-", "evaluation", evaluation or "-")
    return Group(head, *(Text(note, style="yellow") for note in notes))
