"""Journals and stores of an earlier commit: this code folds them to the same numbers, replays and resumes them.

recording  what happened                                                            left as
tools      tools, forks, compaction, hand-over in mid-generation, both evaluations  ended
killed     trainer killed between a step and its checkpoint, worker in mid-answer   cut off: steps 5 of 6, committed 4
durable    killed behind the checkpoint's manifest, before anything was said of it  cut off: step 2 of 4, committed none
kept       weights.pinned: episodes keep their version                              suspended by Ctrl-C after step 3 of 6
lora       adapters                                                                 cut off: step 3 of 4, committed 2
queue      published tasks (one by reference), dead letters, two managers, one killed ended
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import GroupDropped, RunEnded, StepsCommitted, StepTaken, TrainerStarted, TrainingEnded
from seamlessflow.reports.ledger import Ledger
from seamlessflow_trajectory_manager.replay import replay_run
from seamlessflow_trajectory_manager.replay_comparison import SAID

from . import facts
from .recordings import FOLDER, NAMES, Recording, config_of, facts_of, unpack_store
from .resuming import Resumed

MAX_BYTES = 5_000_000
SUSPENDED = tuple(name for name in NAMES if facts_of(name)["resumes_at"] is not None)
FOLDS = ("ledger", "view", "lanes", "progress")


@pytest.mark.parametrize("name", NAMES)
async def test_a_recording_holds_what_it_is_kept_for(name: str, tmp_path: Path):
    """Counted anew, not believed: forks, tool calls, tokens of two workers, abandoned steps and so on."""
    store = unpack_store(name, tmp_path)
    found = facts.topics(await Recording.load(name).events(store), tmp_path / "store" / name)

    assert found == facts_of(name)["topics"]
    assert [topic for topic in facts_of(name)["holds"] if not found[topic]] == []


def test_together_the_recordings_hold_every_topic():
    """What later changes are most likely to break."""
    kept = {topic for name in NAMES for topic in facts_of(name)["holds"]}

    assert kept >= {
        "tool_calls", "forks_messages_removed", "forks_messages_changed", "forks_rewritten_turn", "generations_of_two_workers",
        "handed_back", "generations_of_killed_workers", "kept_version_overlaps", "steps_taken_again", "steps_not_committed",
        "durable_not_committed", "adapters", "managers_with_shards", "moved_shards", "queue_tasks", "blobs", "dead_letters",
        "open_groups", "ended",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_journal_folds_to_the_recorded_numbers(name: str, tmp_path: Path):
    """Ledger, view, lanes and progress, out of a memory server with the recorded sequences and times."""
    recording, store = Recording.load(name), unpack_store(name, tmp_path)
    events = await recording.events(store)
    server = await recording.server(config_of(events))
    read = [record async for record in MemoryBus(server).read(f"J_{name}")]
    kept = facts_of(name)

    assert read == list(recording.journal) and len(read) == kept["num_records"]
    assert [[record.seq, record.time] for record in (read[0], read[-1])] == kept["first_and_last"]
    assert facts.folds(recording, events) == {fold: kept[fold] for fold in FOLDS}
    assert kept["ledger"]["balanced"] and kept["ledger"]["gaps"] == []


@pytest.mark.parametrize("name", NAMES)
async def test_a_fresh_manager_says_what_was_said(name: str, tmp_path: Path):
    """As ``seamlessflow replay`` compares. Of a run that was cut off some causes have no consequence yet."""
    recording, store = Recording.load(name), unpack_store(name, tmp_path)
    server = await recording.server(config_of(await recording.events(store)))
    compared = await replay_run(MemoryBus(server), store, name)

    assert compared.differences == []
    assert {"num_equal": compared.num_equal, "num_pending": compared.num_pending} == facts_of(name)["replay"]
    assert compared.num_equal == sum(facts_of(name)["events"].get(kind.__name__, 0) for kind in SAID)


@pytest.mark.parametrize("name", SUSPENDED)
async def test_a_suspended_run_goes_on_from_its_checkpoint_to_its_end(name: str, tmp_path: Path):
    """The next line begins at the newest durable step with exactly its weights, commits it where that was not said, and takes
    all further steps."""
    resumed, step = await Resumed.of(name, tmp_path), facts_of(name)["resumes_at"]
    checkpoint, last = resumed.checkpoint(step), resumed.config.algorithm.steps
    async with resumed.living():
        started = await resumed.hears(TrainerStarted)
        assert_equal(await resumed.published(started.weights_version), checkpoint)
        ended = await resumed.hears(RunEnded)
    events = await resumed.events(new=True)

    assert (started.step, started.line) == (step, facts_of(name)["topics"]["trainer_lines"] + 1)
    assert [each.step for each in facts.of(events, StepTaken)] == list(range(step + 1, last + 1))
    assert [each.step for each in facts.of(events, TrainingEnded)] == [last]
    assert (ended.reason, ended.steps) == ("completed", last)
    await assert_adds_up(resumed)


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Bit for bit, in one precision."""
    assert found.keys() == wanted.keys()
    assert [name for name in found if not torch.equal(found[name], wanted[name])] == []


async def assert_adds_up(resumed: Resumed) -> None:
    """Over the whole journal, the recorded part included: nothing is in flight, the groups of living steps were committed
    and no others, each in one step, and a fresh manager would say the same again."""
    events = await resumed.events()
    ledger, living = Ledger.of(events), {each.step: each.groups for each in facts.of(events, StepTaken)}
    committed = {group for each in facts.of(events, StepsCommitted) for group in each.groups}
    num_trained = Counter(group for groups in living.values() for group in groups)
    compared = await replay_run(resumed.bus, resumed.store, resumed.run)

    assert ledger.balanced and (ledger.episodes.in_flight, ledger.tokens.in_flight) == (0, 0)
    assert set(num_trained) == committed and set(num_trained.values()) == {1}
    assert not committed & {each.group for each in facts.of(events, GroupDropped)}
    assert compared.differences == []


def test_all_recordings_together_are_small():
    """They are in every checkout."""
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc") < MAX_BYTES
