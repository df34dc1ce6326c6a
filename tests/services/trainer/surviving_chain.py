"""What must be true after any order: the checks of a model test. Not a test."""

from __future__ import annotations

import json
from collections import Counter

from safetensors.torch import load

from seamlessflow.checkpoints.commit_history import ClaimedEvent
from seamlessflow.contracts import (
    Event,
    GroupDropped,
    GroupTrained,
    StepsCommitted,
    TrainerClaimed,
    TrainingEnded,
    WeightsPublished,
)
from seamlessflow.reports.ledger import Ledger
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE
from seamlessflow.weights.digests import hex_of
from seamlessflow.weights.stored_file import stored_file
from tests.services.trainer.sleeping_world import KEEP, Outcome, closed_groups
from tests.services.trainer.three_numbers import trained_groups


def violations(outcome: Outcome) -> list[str]:
    """What is wrong, for people; empty: nothing."""
    found = list(outcome.wrong)
    events, objects = outcome.events, outcome.objects
    commits = surviving_commits(events)
    expected: Counter[str] = Counter()
    for place, commit in enumerate(commits):
        expected += Counter(commit.groups)
        if place >= len(commits) - KEEP:
            found += _wrong_with(f"checkpoint {commit.checkpoint} of line {commit.line}", objects, commit.checkpoint, expected)
    found += [f"{group} was committed {times} times" for group, times in expected.items() if times > 1]
    found += _wrong_closings(events, set(expected))
    found += _wrong_end(outcome, expected)
    return found


def surviving_commits(events: list[Event]) -> list[StepsCommitted]:
    """In journal order: each of them was promised to be durable."""
    return [each for each in events if isinstance(each, StepsCommitted)]


def _wrong_closings(events: list[Event], committed: set[str]) -> list[str]:
    found, closed = _late(events), closed_groups(events)
    trained = {group for group, event in closed.items() if not isinstance(event, GroupDropped)}
    if trained != committed:
        found.append(f"closed as trained are {sorted(trained)}, committed {sorted(committed)}")
    said = Counter(each.group for each in events if isinstance(each, GroupTrained | GroupDropped))
    found += [f"{group} was closed {times} times" for group, times in said.items() if times > 1]
    found += [f"{group} was committed, and never published as trained" for group in committed - said.keys()]
    ledger = Ledger.of(events)
    if not ledger.balanced or ledger.episodes.in_flight or ledger.episodes.trained != 2 * len(committed):
        found.append(f"ledger: {ledger.rows()}, gaps {ledger.gaps}")
    return found


def _late(events: list[Event]) -> list[str]:
    """Events of a claim that was not the newest any more."""
    found, nonce = [], ""
    for event in events:
        if isinstance(event, TrainerClaimed):
            nonce = event.nonce
        elif isinstance(event, ClaimedEvent) and event.nonce != nonce:
            found.append(f"{type(event).__name__} of claim {event.nonce!r} came after claim {nonce!r}")
    return found


def _wrong_end(outcome: Outcome, expected: Counter[str]) -> list[str]:
    events, objects = outcome.events, outcome.objects
    ends = [each for each in events if isinstance(each, TrainingEnded)]
    if not ends and outcome.plan.is_stopped:
        return []
    if len(ends) != 1:
        return [f"TrainingEnded was published {len(ends)} times"]
    versions = {each.weights_version: each for each in events if isinstance(each, WeightsPublished)}
    last = versions.get(ends[0].weights_version)
    if last is None:
        return [f"training ended with weights {ends[0].weights_version}, which nobody published"]
    return _wrong_with(f"weights {last.weights_version} at the end", objects, last.path, expected)


def _wrong_with(what: str, objects: dict[str, bytes], path: str, expected: Counter[str]) -> list[str]:
    try:
        files = json.loads(objects[f"{path}/{MANIFEST}"])["files"]
        for name, listed in files.items():
            file = stored_file(listed)
            if hex_of(objects[f"{path}/{name}"], file.algorithm) != file.hex_digest:
                return [f"{what}: {name} is not what its manifest says"]
    except KeyError as wrong:
        return [f"{what}: there is no {wrong}"]
    found = trained_groups(load(objects[f"{path}/{WEIGHTS_FILE}"]))
    return [] if found == expected else [f"{what} was trained on {dict(found)}, committed were {dict(expected)}"]
