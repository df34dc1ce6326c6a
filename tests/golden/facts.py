"""What folds over a recorded journal come to, as JSON: kept beside each recording, and computed again by the tests.

``topics`` counts what a recording is there for; the rest are figures of the ledger, the run's view, the picture of its nodes
and the scheduler's progress. Of floats, as many digits as a rounding in another order leaves alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from seamlessflow.bus.base import Record
from seamlessflow.contracts import (
    CallAnswered,
    DeadLetter,
    Event,
    GroupAdmitted,
    GroupDropped,
    GroupTrained,
    Role,
    RoleAssigned,
    RoleReleased,
    RunEnded,
    SamplesReady,
    SegmentSampled,
    StepsCommitted,
    StepTaken,
    TaskSubmitted,
    TrainerStarted,
    WeightsLoaded,
    WeightsPublished,
    claim_of,
)
from seamlessflow.reports.ledger import Ledger
from seamlessflow.reports.run_view import RunView
from seamlessflow.store.large_payloads import BLOB_HEADER
from seamlessflow.timeline import TimelineFold
from seamlessflow.weights import MANIFEST
from seamlessflow_scheduler.admission.run_state import RunProgress

from .recordings import Recording, config_of

Timed = Sequence[tuple[Record, Event]]
E = TypeVar("E", bound=Event)
FORKS = ("messages_removed", "messages_changed", "rewritten_turn")


def folds(recording: Recording, events: Timed) -> dict[str, Any]:
    """Ledger, view, lanes and progress."""
    return {
        "ledger": ledger_of(events),
        "view": view_of(events),
        "lanes": lanes_of(events),
        "progress": progress_of(recording, events),
    }


def ledger_of(events: Timed) -> dict[str, Any]:
    ledger = Ledger.of(event for _, event in events)
    return {"balanced": ledger.balanced, "rows": [list(row) for row in ledger.rows()], "gaps": list(ledger.gaps)}


def view_of(events: Timed) -> dict[str, Any]:
    view = RunView()
    for record, event in events:
        view.apply(event, record.time)
    return {
        "steps": [[row.step, row.line, row.weights_version] for row in view.steps],
        "rewards": [round(row.metrics.get("reward", 0.0), 6) for row in view.steps],
        "committed_step": view.committed_step,
        "weights_version": view.weights_version,
        "sampled_tokens": view.sampled_tokens,
        "running_episodes": view.running_episodes,
        "groups_admitted": view.groups_admitted,
        "groups_dropped": dict(sorted(view.groups_dropped.items())),
        "episodes_by_status": dict(sorted(view.statuses.items())),
        "forks": dict(sorted(view.forks.items())),
        "reprefilled_tokens": view.reprefilled_tokens,
        "staleness": {str(age): count for age, count in sorted(view.staleness.items())},
        "tasks": len(view.tasks),
        "dead_letters": len(view.dead_letters),
        "evaluations": {name: ended.num_episodes for name, ended in sorted(view.evaluations.items())},
        "ended": None if view.ended is None else [view.ended.reason, view.ended.steps],
    }


def lanes_of(events: Timed) -> dict[str, Any]:
    fold = TimelineFold()
    for record, event in events:
        fold.apply(event, record.time)
    lanes = fold.lanes("recording")
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in lanes.spans:
        seconds[f"{span.node} {span.kind.value}"] += span.seconds
    return {
        "seconds": {name: round(took, 3) for name, took in sorted(seconds.items())},
        "num_spans": len(lanes.spans),
        "steps": [[step.step, step.weights_version] for step in lanes.steps],
        "versions": [version for _, version in lanes.versions],
    }


def progress_of(recording: Recording, events: Timed) -> dict[str, Any]:
    progress = RunProgress(recording.run, config_of(events))
    for record, event in events:
        progress.apply(event, record.time)
    return {
        "line": progress.steps.line,
        "step": progress.steps.step,
        "admitted": progress.admitted,
        "dropped": progress.dropped,
        "waiting": sorted(progress.waiting),
        "open_groups": sorted(progress.groups),
        "open_training": sorted(progress.open_training),
        "owed": sorted(progress.owed),
        "num_unfinished": progress.num_unfinished,
        "potential": progress.potential,
        "in_step": sorted(progress.steps.in_step),
        "bucket_loads": progress.bucket_loads,
        "tasks_ended": progress.tasks_ended,
        "training_ended": None if progress.training_ended is None else progress.training_ended.step,
        "ended": None if progress.ended is None else progress.ended.reason,
    }


def topics(events: Timed, store: Path) -> dict[str, int]:
    """How much of each thing that the recordings are to hold. ``store``: the run's folder in the object store."""
    said = [event for _, event in events]
    forks = sum((Counter(ready.fork_causes) for ready in of(said, SamplesReady)), Counter())
    committed = {commit.step for commit in of(said, StepsCommitted)}
    durable = {int(path.parent.name) for path in store.glob(f"checkpoints/*/{MANIFEST}")}
    return {
        "tool_calls": sum(answer.finish_reason == "tool_calls" for answer in of(said, CallAnswered)),
        **{f"forks_{cause}": forks[cause] for cause in FORKS},
        "generations_of_two_workers": len(_of_two_workers(said)),
        "generations_of_killed_workers": len(_of_two_workers(said, only_replaced=True)),
        "handed_back": sum(released.num_handed_back for released in of(said, RoleReleased)),
        "kept_version_overlaps": _overlaps(said),
        "trainer_lines": len(of(said, TrainerStarted)),
        "steps_taken_again": sum(count - 1 for count in Counter(step.step for step in of(said, StepTaken)).values()),
        "steps_not_committed": len(_lost(said)),
        "durable_not_committed": len(durable - committed),
        "adapters": len(list(store.glob("weights/*/adapter_model.safetensors"))),
        "managers_with_shards": len(_managers(said)),
        "moved_shards": _moved(said),
        "queue_tasks": len(of(said, TaskSubmitted)),
        "blobs": sum(BLOB_HEADER in record.headers for record, _ in events),
        "dead_letters": len(of(said, DeadLetter)),
        "groups_dropped": len(of(said, GroupDropped)),
        "open_groups": len(
            {each.group for each in of(said, GroupAdmitted) if each.evaluation is None}
            - {each.group for each in said if isinstance(each, GroupTrained | GroupDropped)}
        ),
        "ended": len(of(said, RunEnded)),
        "versions": len(of(said, WeightsPublished)),
    }


def of(events: Iterable[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def _of_two_workers(said: Sequence[Event], *, only_replaced: bool = False) -> set[str]:
    """Generations of which two workers' tokens are in the journal. only_replaced: and one of them died, so that another process
    took its place on its node."""
    holder: dict[str, str] = {}
    samplers: defaultdict[str, set[str]] = defaultdict(set)
    for event in said:
        if (claim := claim_of(event)) is not None:
            holder[claim.generation] = claim.worker
        if isinstance(event, SegmentSampled) and event.token_ids:
            samplers[event.generation].add(holder[event.generation])
    newest = {loaded.node: loaded.worker for loaded in of(said, WeightsLoaded)}
    replaced = {loaded.worker for loaded in of(said, WeightsLoaded)} - set(newest.values())
    return {name for name, workers in samplers.items() if len(workers) > 1 and (workers & replaced or not only_replaced)}


def _overlaps(said: Iterable[Event]) -> int:
    """Segments of an older version that are stored behind one of a newer version."""
    newest, count = -1, 0
    for segment in of(said, SegmentSampled):
        count += segment.weights_version < newest
        newest = max(newest, segment.weights_version)
    return count


def _lost(said: Sequence[Event]) -> set[int]:
    """The newest line's steps that were not committed."""
    line = max(started.line for started in of(said, TrainerStarted))
    committed = {group for commit in of(said, StepsCommitted) for group in commit.groups}
    return {step.step for step in of(said, StepTaken) if step.line == line and not committed.issuperset(step.groups)}


def _managers(said: Iterable[Event]) -> dict[str, list[tuple[str, ...]]]:
    """By node: the shards it was given, one after the other. Agent-runners serve environments, which are no numbers."""
    given: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for assigned in of(said, RoleAssigned):
        if assigned.role is Role.SERVE and assigned.tags and all(tag.isdecimal() for tag in assigned.tags):
            given[assigned.node].append(assigned.tags)
    return given


def _moved(said: Iterable[Event]) -> int:
    """How often a manager was given shards after it had had others."""
    return sum(len(given) - 1 for given in _managers(said).values())


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Lists without lists in them on one line each."""
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    path.write_text(re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


__all__ = ["Timed", "folds", "of", "topics", "write_facts"]
