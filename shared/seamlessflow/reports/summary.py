"""``summary.json``: what a run came to, for people's tools. Pure: built from the view and the ledger."""

from __future__ import annotations

from typing import Any

from seamlessflow.config.run import RunConfig
from seamlessflow.logprob_gap import GAP

from .downtime import seconds_within
from .ledger import Ledger
from .run_view import RunView


def summarize(
    run: str, config: RunConfig, view: RunView, ledger: Ledger, *, counts: dict[str, int], model_dir: str
) -> dict[str, Any]:
    """All figures of a run. ``counts``: distinct training and held-out questions. Seconds and milliseconds as named.

    ``wall_seconds`` cover all commands of the run, from its start to its end, without the time in which it was suspended.
    """
    phases, suspensions = phase_seconds(view), view.lives.suspensions()
    total = sum(phases.values())
    return {
        "run": run,
        "seed": config.seed,
        "reason": view.ended.reason if view.ended else "not ended",
        "steps": view.step,
        "tasks": counts,
        "evaluation": {name: _evaluation(event) for name, event in view.evaluations.items()},
        "wall_seconds": {"total": round(total, 3), **phases},
        "resumed": len(suspensions),
        "suspended_seconds": round(sum(until - since for since, until in suspensions), 3),
        "ledger": ledger.to_json(),
        "tokens_per_second": round(view.sampled_tokens / max(total, 1e-9), 3),
        "sampled_tokens": view.sampled_tokens,
        "pauses": {
            "count": len(view.pauses),
            "milliseconds_total": round(1000 * sum(s for _, s in view.pauses), 1),
            "milliseconds_max": round(1000 * max((s for _, s in view.pauses), default=0.0), 1),
        },
        "weights": {
            "versions": len(view.version_steps),
            "last": view.weights_version,
            "path": view.weights_path,
            "model": model_dir,
        },
        "staleness": {str(age): count for age, count in sorted(view.staleness.items())},
        "groups": {"admitted": view.groups_admitted, "dropped": dict(view.groups_dropped)},
        "episodes_by_status": dict(view.statuses),
        "forks": {"count": view.forks.total(), **view.forks, "reprefilled_tokens": view.reprefilled_tokens},
        "dead_letters": len(view.dead_letters),
        "logprob_gap": {"alarms": view.num_gap_alarms, "largest": _largest(view, GAP), "warning": view.gap_warning or ""},
        "train_seconds": _total(view, "seconds_train"),
        "publish_seconds": _total(view, "seconds_publish"),
        "reward_by_step": [round(row.metrics.get("reward", float("nan")), 4) for row in view.steps],
    }


def phase_seconds(view: RunView) -> dict[str, float]:
    """Seconds from the run's start to its end in which it was not suspended, cut at the phases in the journal."""
    if view.started is None or view.last_time is None:
        return {}
    end = view.ended_at or view.last_time
    before_ended = view.training_began or end
    trained = view.training_ended or end
    suspensions = view.lives.suspensions()

    def running(since: float, until: float) -> float:
        return round(until - since - seconds_within(suspensions, since, until), 3)

    return {
        "start_and_evaluation_before": running(view.started, before_ended),
        "training": running(before_ended, trained),
        "evaluation_after": running(trained, end),
    }


def _evaluation(event: Any) -> dict[str, Any]:
    return {
        "mean_reward": event.mean_reward,
        "num_episodes": event.num_episodes,
        "num_failed": event.num_failed,
        "weights_versions": list(event.weights_versions),
        "wall_seconds": round(event.wall_seconds, 3),
    }


def _largest(view: RunView, name: str) -> float | None:
    """Of all steps that measured it; None: none did."""
    return max((round(row.metrics[name], 6) for row in view.steps if name in row.metrics), default=None)


def _total(view: RunView, name: str) -> float:
    return round(sum(row.metrics.get(name, 0.0) for row in view.steps), 3)
