"""Whole runs whose episodes keep the weights version they began with, through all services, a real server and a real model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from seamlessflow.contracts import DeadLetter, GenerationRequested, SegmentSampled, StepTaken

from .short_runs import Journal, short_run

pytestmark = [pytest.mark.system, pytest.mark.slow]

STEPS = 6
GAP_NATS = 1e-4
"""Engine and trainer both compute in float32. No generation sees a past of older weights, so no more is left between them than
where weights never change."""
RUN_SECONDS = 300.0
SECTIONS = {
    "weights": {"pinned": "episode"},
    "algorithm": {"steps": STEPS, "groups_per_step": 4, "group_size": 4, "max_staleness": 2},
}


@pytest.fixture(autouse=True)
def in_the_folder_of_the_runs(tmp_path, monkeypatch):
    """Journals are read from here."""
    monkeypatch.chdir(tmp_path)


def versions_by_episode(journal: Journal) -> Mapping[str, set[int]]:
    """Under which versions tokens of each episode were sampled."""
    found: dict[str, set[int]] = defaultdict(set)
    for segment in journal.all(SegmentSampled):
        found[segment.episode].add(segment.weights_version)
    return found


def wanted_by_episode(journal: Journal) -> Mapping[str, set[int | None]]:
    """Which versions its generations asked for."""
    found: dict[str, set[int | None]] = defaultdict(set)
    for request in journal.all(GenerationRequested):
        found[request.episode].add(request.weights_version)
    return found


def num_overlapping(versions: Sequence[int]) -> int:
    """How many segments of an older version were stored behind one of a newer version."""
    newest, count = -1, 0
    for version in versions:
        count += version < newest
        newest = max(newest, version)
    return count


def let_go(journal: Journal) -> set[str]:
    """Episodes that went on under another version than theirs."""
    wanted = wanted_by_episode(journal)
    return {episode for episode, versions in versions_by_episode(journal).items() if versions != wanted[episode]}


async def _ended_well(training, steps: int = STEPS) -> Journal:
    summary = training.finish(RUN_SECONDS)
    journal = await Journal.of(training.folder.name)
    assert (summary["reason"], summary["steps"]) == ("completed", steps)
    assert journal.ledger.balanced
    assert (journal.ledger.episodes.in_flight, journal.ledger.tokens.in_flight) == (0, 0)
    assert journal.all(DeadLetter) == []
    assert all(len(versions) == 1 and None not in versions for versions in wanted_by_episode(journal).values())
    return journal


async def test_episodes_keep_their_version_over_steps_while_others_move_on(train, tmp_path):
    """Two workers, one of which trains in between. Tokens are of the version that their episode began with: all, unless the
    machine is so slow that an episode sees four updates."""
    journal = await _ended_well(train(short_run(tmp_path, **SECTIONS), "pinned", "--slices", "2"))
    versions = [segment.weights_version for segment in journal.all(SegmentSampled)]

    assert [step.step for step in journal.all(StepTaken)] == list(range(1, STEPS + 1))
    assert len(let_go(journal)) <= len(versions_by_episode(journal)) / 50
    assert len(set(versions)) > STEPS // 2 and num_overlapping(versions) > 0
    assert all(gap < GAP_NATS for gap in journal.logprob_gaps), journal.logprob_gaps


async def test_a_holder_that_is_killed_ends_no_episode(train, tmp_path):
    """Its episodes go on: where their version is, where it is fetched, or under the newest; the sums are right all the same."""
    training = train(short_run(tmp_path, **SECTIONS), "killed", "--slices", "2")
    training.wait_for(f"step   3/{STEPS}", 240)
    training.kill("rollout-worker")
    journal = await _ended_well(training)

    assert len(let_go(journal)) < len(versions_by_episode(journal)) / 2


async def test_who_lives_through_more_updates_than_there_is_room_for_goes_on_under_the_newest(train, tmp_path):
    """One worker has two versions, and a step takes a quarter of what it samples side by side: said, and accounted for."""
    steps = 16
    quick = {"steps": steps, "groups_per_step": 1, "group_size": 4, "max_staleness": 6, "drop_zero_variance": False}
    sections = SECTIONS | {"algorithm": quick, "evaluation": {"before": False, "after": False}}
    training = train(short_run(tmp_path, **sections), "quick", "--slices", "1")
    journal = await _ended_well(training, steps)
    log = (training.folder / "logs" / "rollout-worker-0.log").read_text()
    gone = let_go(journal)

    assert 0 < len(gone) < len(versions_by_episode(journal)) / 2
    assert all(f'"episode": "{episode}"' in log for episode in gone) and "generation.version_let_go" in log
