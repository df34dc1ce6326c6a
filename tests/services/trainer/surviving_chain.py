"""What must be true after any order: the checks of a model test. Not a test."""

from __future__ import annotations

import json
from collections import Counter

from safetensors.torch import load
from sleeping_world import KEEP, Outcome, closed_groups
from three_numbers import trained_groups
from trainer_world import RUN

from seamlessflow.contracts import (
    DropReason,
    Event,
    GroupDropped,
    GroupTrained,
    RunEnded,
    SamplesReady,
    StepsCommitted,
    TrainingEnded,
    WeightsPublished,
)
from seamlessflow.ledger import Ledger
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE
from seamlessflow.weights.hashing import hex_of
from seamlessflow.weights.stored import stored_file


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
    found += _wrong_end(events, objects, expected)
    return found


def surviving_commits(events: list[Event]) -> list[StepsCommitted]:
    """Each once, in the order in which they were said: every one of them was promised to be durable."""
    commits = {(each.step, each.line, each.groups): each for each in events if isinstance(each, StepsCommitted)}
    return sorted(commits.values(), key=lambda each: (each.line, each.step))


def _wrong_closings(events: list[Event], committed: set[str]) -> list[str]:
    found, closed = [], closed_groups(events)
    trained = {group for group, event in closed.items() if not isinstance(event, GroupDropped)}
    if trained != committed:
        found.append(f"closed as trained are {sorted(trained)}, committed {sorted(committed)}")
    said = Counter(each.group for each in events if isinstance(each, GroupTrained | GroupDropped))
    found += [f"{group} was closed {times} times" for group, times in said.items() if times > 1]
    ledger = Ledger.of(events + _run_end(events, set(closed)))
    if not ledger.balanced or ledger.episodes.in_flight or ledger.episodes.trained != 2 * len(committed):
        found.append(f"ledger: {ledger.rows()}, gaps {ledger.gaps}")
    return found


def _run_end(events: list[Event], closed: set[str]) -> list[Event]:
    """As the scheduler ends a run: what is left is dropped."""
    groups = {each.origin.group for each in events if isinstance(each, SamplesReady)}
    drops = [GroupDropped(run=RUN, group=group, reason=DropReason.RUN_ENDED) for group in sorted(groups - closed)]
    return [*drops, RunEnded.model_construct(run=RUN)]


def _wrong_end(events: list[Event], objects: dict[str, bytes], expected: Counter[str]) -> list[str]:
    ends = [each for each in events if isinstance(each, TrainingEnded)]
    if len(ends) != 1:
        return [f"TrainingEnded was said {len(ends)} times"]
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
