"""The end of a run: summary on the screen, ``summary.json``, ``report.html``, and the weights as a model folder."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from seamlessflow.client import Client
from seamlessflow.config.run import RunConfig
from seamlessflow.datasets import Questions
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.reports.html_report import headline, write_report
from seamlessflow.reports.ledger import Ledger
from seamlessflow.reports.run_view import RunView
from seamlessflow.reports.summary import summarize
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import fetch_folder, model_path

from .follow import Follower
from .run_location import Folder
from .status import ledger_table

GOOD_ENDS = ("completed", "tasks_ended", "nothing_left_to_learn", "stopped")


def write_summary(
    run: str, config: RunConfig, questions: Questions, follower: Follower, folder: Folder, model_dir: str = ""
) -> dict[str, Any]:
    """Write ``summary.json``: from what was followed alone, so that nothing can be in its way."""
    counts = {"training": len(questions.training), "held_out": len(questions.held_out)}
    found = follower.ledger.ledger()
    summary = summarize(run, config, follower.view, found, counts=counts, model_dir=model_dir)
    (folder.path / "summary.json").write_text(json.dumps(summary, indent=1))
    return summary


async def finish(
    client: Client, run: str, config: RunConfig, questions: Questions, follower: Follower, folder: Folder, console: Console
) -> int:  # fmt: skip
    """Write everything an ended run leaves behind and print the result; returns the exit code.

    Weights or report that cannot be had are a note: the run is over, and its summary is there.
    """
    view, found, notes = follower.view, follower.ledger.ledger(), []
    summary = write_summary(run, config, questions, follower, folder)
    try:
        model_dir = await asyncio.to_thread(_export_model, client.store, run, view, folder)
        summary = write_summary(run, config, questions, follower, folder, model_dir)
    except (SeamlessFlowError, OSError) as wrong:
        notes.append(f"the weights were not copied here: {wrong}")
    try:
        await asyncio.to_thread(write_report, folder.path / "report.html", view, found, summary, follower.lanes.lanes(run))
    except (ImportError, OSError) as wrong:
        notes.append(f"report.html was not written: {wrong}")
    _print(console, summary, found, folder)
    for note in notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    return 0 if found.balanced and view.ended is not None and view.ended.reason in GOOD_ENDS else 1


def _export_model(store: Store, run: str, view: RunView, folder: Folder) -> str:
    """Config, tokenizer and newest weights side by side: a folder for ``from_pretrained``. Empty when nothing was published."""
    from seamlessflow.weights.fetch import fetch_version  # numpy: not for every command

    if view.weights_version is None:
        return ""
    target = folder.path / "model"
    fetch_folder(store, model_path(run), target)
    fetch_version(store, view.weights_path, view.weights_version, target)
    return str(target)


def _print(console: Console, summary: dict[str, Any], found: Ledger, folder: Folder) -> None:
    console.print(f"\n{summary['run']}: {summary['reason']}", style="bold", markup=False)
    console.print(headline(summary), style="bold", markup=False)
    table = Table(show_header=False, box=None)
    for name, seconds in summary["wall_seconds"].items():
        table.add_row(name.replace("_", " "), f"{seconds:.1f} s")
    if summary["resumed"]:
        table.add_row(
            "resumed", f"{summary['resumed']} (suspended for {summary['suspended_seconds']:.0f} s, which no figure here counts)"
        )
    table.add_row("of which training steps", f"{summary['train_seconds']:.1f} s")
    table.add_row("tokens per second", f"{summary['tokens_per_second']:.1f}")
    pauses = summary["pauses"]
    table.add_row(
        "weight pauses",
        f"{pauses['count']} ({pauses['milliseconds_total']:.0f} ms in all, longest {pauses['milliseconds_max']:.0f} ms)",
    )
    table.add_row("staleness of trained tokens", ", ".join(f"{age}: {n:,}" for age, n in summary["staleness"].items()) or "-")
    table.add_row("episodes", ", ".join(f"{n} {status}" for status, n in summary["episodes_by_status"].items()))
    if summary["dead_letters"]:
        table.add_row("dead letters", f"{summary['dead_letters']}: seamlessflow status {summary['run']}")
    if summary["logprob_gap"]["alarms"]:
        gap = summary["logprob_gap"]
        said = f"{gap['alarms']} steps of {summary['steps']}, up to {gap['largest']:.3g} nats"
        table.add_row("logprob gap ALARM", f"{said}. {gap['warning']}".rstrip())
    if summary["weights"]["model"]:
        table.add_row("weights", f"{summary['weights']['model']}/ (transformers: from_pretrained)")
    table.add_row("report", f"{folder.path}/report.html, summary.json, metrics.jsonl, tensorboard/")
    console.print(table)
    console.print(ledger_table(found))
