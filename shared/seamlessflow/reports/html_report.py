"""A run as one HTML file: curves, roles over time, tables. Everything inline, nothing is fetched."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import Any

from seamlessflow.timeline import Timeline
from seamlessflow.timeline.draw.png_image import svg

from .ledger import Ledger
from .run_view import RunView

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#1b1f24}
h1{margin-bottom:.1em} .lead{font-size:1.25em} table{border-collapse:collapse;margin:1em 0}
td,th{padding:.25em .9em;border-bottom:1px solid #d8dee4;text-align:right} td:first-child,th:first-child{text-align:left}
figure{margin:1.5em 0} figcaption{color:#57606a} svg{max-width:100%;height:auto}
"""


def write_report(path: Path, view: RunView, ledger: Ledger, summary: dict[str, Any], lanes: Timeline) -> None:
    """Write the report. Needs matplotlib (extra ``report``)."""
    figures = [
        ("Reward of sampled answers, per step and agent", _reward_curve(view)),
        ("What each device did (to look closer: seamlessflow gantt)", svg(lanes) if lanes.spans else ""),
        ("Age of trained tokens, in optimiser steps", _staleness(view)),
        ("Trainer against engine: mean absolute logprob gap at equal weights, and gradient norm", _health(view)),
    ]
    body = [
        f"<h1>{html.escape(summary['run'])}</h1>",
        f"<p class=lead>{html.escape(headline(summary))}</p>",
        _tables(summary, ledger),
    ]
    body += [f"<figure>{svg}<figcaption>{html.escape(title)}</figcaption></figure>" for title, svg in figures if svg]
    page = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(summary['run'])}</title><style>{_STYLE}</style>{''.join(body)}"
    )
    path.write_text(page)


def headline(summary: dict[str, Any]) -> str:
    """The result in one sentence."""
    before, after = (summary["evaluation"].get(name, {}).get("mean_reward", {}) for name in ("before", "after"))
    gains = [f"{env}: {before.get(env, float('nan')):.2f} before, {value:.2f} after" for env, value in after.items()]
    scores = "; ".join(gains) or "no evaluation"
    return f"Held-out reward {scores}. {summary['steps']} steps, {summary['sampled_tokens']:,} sampled tokens."


def _tables(summary: dict[str, Any], ledger: Ledger) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(column)}</td><td>{episodes:,}</td><td>{tokens:,}</td></tr>"
        for column, episodes, tokens in ledger.rows()
    )
    seconds = "".join(f"<tr><td>{html.escape(k)}</td><td>{v:.1f} s</td></tr>" for k, v in summary["wall_seconds"].items())
    phases = f"<table><tr><th>phase</th><th></th></tr>{seconds}</table>"
    return f"<table><tr><th>ledger</th><th>episodes</th><th>tokens</th></tr>{rows}</table>{phases}"


def _axes(height: float = 2.8) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]


def _reward_curve(view: RunView) -> str:
    if not view.steps:
        return ""
    figure, axes = _axes()
    names = sorted({name for row in view.steps for name in row.metrics if name.startswith("reward/")}) or ["reward"]
    for name in names:
        rows = [row for row in view.steps if name in row.metrics]
        axes.plot([r.step for r in rows], [r.metrics[name] for r in rows], marker=".", label=name.removeprefix("reward/"))
    axes.set(xlabel="step", ylabel="mean reward")
    axes.legend()
    return _svg(figure)


def _staleness(view: RunView) -> str:
    if not view.staleness:
        return ""
    figure, axes = _axes(2.0)
    ages = sorted(view.staleness)
    axes.bar([str(age) for age in ages], [view.staleness[age] for age in ages])
    axes.set(xlabel="age", ylabel="tokens")
    return _svg(figure)


def _health(view: RunView) -> str:
    rows = [row for row in view.steps if "logprob_gap" in row.metrics]
    if not rows:
        return ""
    figure, axes = _axes(2.4)
    axes.plot([r.step for r in rows], [r.metrics["logprob_gap"] for r in rows], color="#8250df", label="logprob gap (nats)")
    axes.set(xlabel="step", ylabel="gap")
    other = axes.twinx()
    other.plot([r.step for r in view.steps], [r.metrics.get("grad_norm", 0.0) for r in view.steps], color="#57606a", alpha=0.6)
    other.set_ylabel("gradient norm")
    axes.legend()
    return _svg(figure)
