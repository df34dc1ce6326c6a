"""Runs that a trainer cannot take up before a person decides: what is wrong is published, and nothing is changed.

what is found                                        what a person can do
the newest checkpoint is damaged, or gone            bring it back and resume, or go back to another one
checkpoints that the journal does not explain        go back to one that it names; they count no more
a rollback to a step of which no checkpoint is kept  ask for another one
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seamlessflow.bus.base import Message
from seamlessflow.checkpoints.commit_claim import CommitClaim, read_commits
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import (
    DropReason,
    EpisodeTokens,
    Event,
    GroupDropped,
    GroupTrained,
    ResumeRequested,
    Role,
    RolledBack,
    RunHeld,
    RunStopRequested,
    StepsCommitted,
    TrainedGroup,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
)
from seamlessflow.contracts.routes import CONTROL_STREAM
from seamlessflow.contracts.subjects import subject_filter, subject_of
from seamlessflow.errors import BadInput, Damaged, Superseded
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, publish_folder
from seamlessflow_trainer.steps import checkpoints
from seamlessflow_trainer.steps.checkpoints import BARRIER, BARRIER_TEXT, CheckpointStore
from tests.services.trainer.trainer_accounts import feed
from tests.services.trainer.trainer_world import RUN, World

MakeWorld = Callable[..., Awaitable[World]]


async def committed_world(make_world: MakeWorld, *, num_steps: int = 1) -> World:
    """A run of nine steps of which some are committed, and no trainer is there any more."""
    world = await make_world(steps=9, every_steps=1, max_staleness=9)
    await world.lease(Role.TRAIN)
    feeder = asyncio.create_task(feed(world, [f"g{n}" for n in range(2 * num_steps)]))
    async with world.trainer():
        await world.hears(StepsCommitted, count=num_steps)
    await feeder
    return world


async def newest(world: World) -> StepsCommitted:
    return (await world.heard(StepsCommitted))[-1]


def spoil(world: World, path: str) -> bytes:
    """Other bytes in the place of a file; returns what was there."""
    content = world.store.read(path)
    (world.folder / "store" / path).chmod(0o644)
    world.store.write(path, b"rubbish" + content[7:])
    return content


async def test_a_damaged_checkpoint_holds_the_run(make_world: MakeWorld) -> None:
    """The reason names the file and what to do; no line begins, and the trainer does not try again and again."""
    world = await committed_world(make_world)
    path = f"{(await newest(world)).checkpoint}/optimizer.safetensors"
    spoil(world, path)
    async with world.trainer():
        held = await world.hears(RunHeld)
        await asyncio.sleep(0.5)

    assert path in held.reason and "3 reads agree" in held.reason and f"seamlessflow train --resume {RUN}" in held.reason
    assert len(await world.heard(TrainerStarted)) == 1
    assert [claim.line for claim in await world.heard(TrainerClaimed)] == [1, 2]


@pytest.mark.parametrize("name", [MANIFEST, "model.safetensors"])
async def test_a_checkpoint_of_which_a_file_is_gone_is_damaged_as_well(name: str, make_world: MakeWorld) -> None:
    """The store answers, and does not have it: waiting would wait for ever."""
    world = await committed_world(make_world)
    world.store.remove(f"{(await newest(world)).checkpoint}/{name}")
    async with world.trainer():
        held = await world.hears(RunHeld)

    assert name in held.reason


async def test_a_held_run_goes_on_when_its_checkpoint_is_back(make_world: MakeWorld) -> None:
    """Resumed by a person; every trainer that comes before that stays out, without a claim."""
    world = await committed_world(make_world)
    path = f"{(await newest(world)).checkpoint}/optimizer.safetensors"
    content = spoil(world, path)
    async with world.trainer():
        await world.hears(RunHeld)
    async with world.trainer():
        await asyncio.sleep(0.3)
    assert len(await world.heard(TrainerClaimed)) == 2
    world.store.write(path, content)
    await world.journal.publish(ResumeRequested(run=RUN, request="q1"))
    async with world.trainer():
        started = await world.hears(TrainerStarted, count=2)

    assert (started.line, started.step) == (3, 1)


async def test_a_rollback_goes_on_from_an_earlier_checkpoint(make_world: MakeWorld) -> None:
    """What was trained after it is in no weights, is shown so, and is not trained again."""
    world = await committed_world(make_world, num_steps=3)
    commits = await world.heard(StepsCommitted)
    spoil(world, f"{commits[-1].checkpoint}/model.safetensors")
    async with world.trainer():
        await world.hears(RunHeld)
    await world.journal.publish(ResumeRequested(run=RUN, request="q1", checkpoint_step=2))
    async with world.trainer():
        started = await world.hears(TrainerStarted, count=2)
        await feed(world, ["g6", "g7"])
        again = await world.hears(StepsCommitted, count=4)

    (rolled_back,) = await world.heard(RolledBack)
    assert (rolled_back.step, rolled_back.checkpoint, rolled_back.request) == (2, commits[1].checkpoint, "q1")
    assert (started.step, again.step, sorted(again.groups)) == (2, 3, ["g6", "g7"])
    history = CommitHistory.of(await world.heard(Event))
    assert [commit.step for commit in history.targets(9)] == [1, 2, 3]
    assert sorted(t.group for t in await world.heard(GroupTrained)) == [f"g{n}" for n in range(8)]


async def test_a_rollback_of_a_run_that_is_trained_ends_the_line(make_world: MakeWorld, monkeypatch) -> None:
    """The trainer that is there hands back what it holds and begins another line, which goes back; its process goes on."""
    monkeypatch.setattr("seamlessflow_trainer.incarnations.LOOK_SECONDS", 0.05)
    world = await committed_world(make_world, num_steps=2)
    async with world.trainer():
        await world.hears(TrainerStarted, count=2)
        await world.journal.publish(ResumeRequested(run=RUN, request="q1", checkpoint_step=1))
        started = await world.hears(TrainerStarted, count=3)
        await feed(world, ["g4", "g5"])
        again = await world.hears(StepsCommitted, count=3)

    assert started.step == 1 and len(await world.heard(RolledBack)) == 1
    assert (again.line, again.step, sorted(again.groups)) == (3, 2, ["g4", "g5"])


async def test_a_trainer_that_stays_goes_on_by_itself_when_a_person_answers(make_world: MakeWorld, monkeypatch) -> None:
    """Also where its lease never changed in between: the answer came before the scheduler took the lease away."""
    monkeypatch.setattr("seamlessflow_trainer.incarnations.LOOK_SECONDS", 0.05)
    world = await committed_world(make_world)
    path = f"{(await newest(world)).checkpoint}/optimizer.safetensors"
    content = spoil(world, path)
    async with world.trainer():
        await world.hears(RunHeld)
        world.store.write(path, content)
        await world.journal.publish(ResumeRequested(run=RUN, request="q1"))
        started = await world.hears(TrainerStarted, count=2)

    assert (started.line, started.step) == (3, 1)


def on_rollback(message: Message) -> bool:
    return ".rolled-back." in message.message_id


@pytest.mark.parametrize("after_storing", [False, True], ids=["before", "after"])
async def test_killed_around_a_rollback_the_next_trainer_goes_back_once(after_storing: bool, make_world: MakeWorld) -> None:
    """The rollback is wanted until it is stored, and then it is the newest record."""
    world = await committed_world(make_world, num_steps=2)
    await world.journal.publish(ResumeRequested(run=RUN, request="q1", checkpoint_step=1))
    async with world.trainer(on_rollback, after_storing=after_storing) as bus:
        await asyncio.wait_for(bus.died.wait(), 30)
    async with world.trainer():
        started = await world.hears(TrainerStarted, count=2)

    assert (started.step, len(await world.heard(RolledBack))) == (1, 1)


async def test_damage_in_several_ranges_is_damage_whichever_is_found_first(tmp_path: Path) -> None:
    """Ranges are read side by side, so each read may name another one."""
    store = Store(f"file://{tmp_path}/store")
    path, names = f"{RUN}/checkpoints/00000001-1-x", ("model.safetensors", "optimizer.safetensors")
    facts = {"step": 1, "line": 1, "nonce": "n1", "predecessor": None, "trained": []}
    publish_folder(store, path, {name: bytes(range(256)) * 4 for name in names}, facts, range_bytes=16)
    store.write(f"{path}/model.safetensors", bytes(1024))

    with pytest.raises(Damaged, match=r"model.safetensors.*3 reads agree"):
        CheckpointStore(store, RUN, tmp_path / "work").read(path)


async def test_a_newest_commit_that_cannot_be_read_holds_the_run(make_world: MakeWorld) -> None:
    """A large account rests in the store; without it nobody knows which groups are trained."""
    world = await committed_world(make_world)
    history = await read_commits(world.bus, world.journal, RUN)
    claim = CommitClaim(world.bus, world.journal, RUN, "test")
    await claim.take()
    episodes = tuple(EpisodeTokens(episode=f"e{number}-{'x' * 60}", trained=1) for number in range(2000))
    account = (TrainedGroup(group="g9", step=2, episodes=episodes),)
    checkpoint = history.newest.checkpoint
    large = StepsCommitted(
        run=RUN, step=2, line=claim.line, checkpoint=checkpoint, groups=("g9",), nonce=claim.nonce, account=account
    )
    await claim.append(large)
    world.store.remove_folder(f"{RUN}/blobs")
    async with world.trainer(), asyncio.timeout(20):
        while (held := await world.journal.last(RunHeld, RUN)) is None:
            await asyncio.sleep(0.02)

    assert "a commit in the journal cannot be read" in held.reason


async def test_a_message_of_no_service_on_the_subject_of_commits_holds_up_nobody(make_world: MakeWorld) -> None:
    """Whatever someone published by hand: the next claim follows it, and the fold passes over it."""
    world = await committed_world(make_world)
    await world.bus.publish(Message(subject_of(TrainerClaimed(run=RUN, line=0, nonce="n", by="")), b"rubbish", "by-hand"))
    async with world.trainer(), asyncio.timeout(20):
        while (started := await world.journal.last(TrainerStarted, RUN)) is None or started.line == 1:
            await asyncio.sleep(0.02)

    assert started.step == 1 and await world.journal.last(RunHeld, RUN) is None


async def test_a_trainer_that_was_superseded_and_cannot_begin_stops_no_run(make_world: MakeWorld, monkeypatch) -> None:
    """What is wrong with its own machine is no reason to end what another one does well."""
    world = await committed_world(make_world)
    other = CommitClaim(world.bus, world.journal, RUN, "trainer another")

    async def cannot(*arguments: object, **options: object) -> int:
        await other.take()
        raise BadInput("this machine cannot")

    monkeypatch.setattr("seamlessflow_trainer.run_start.restore", cannot)
    monkeypatch.setattr("seamlessflow_trainer.incarnations.LONGEST_PAUSE_SECONDS", 0.0)
    with pytest.raises(Superseded):
        async with world.trainer() as bus:
            await asyncio.wait_for(asyncio.shield(bus.user), 20)

    assert await world.heard(TrainingEnded) == []
    assert await world.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=RUN)) is None


async def test_a_rollback_to_a_step_that_is_not_kept_holds_the_run(make_world: MakeWorld) -> None:
    """The reason names those that are; the next request counts alone."""
    world = await committed_world(make_world, num_steps=3)
    await world.journal.publish(ResumeRequested(run=RUN, request="q1", checkpoint_step=1))
    async with world.trainer():
        held = await world.hears(RunHeld)
    await world.journal.publish(ResumeRequested(run=RUN, request="q2"))
    async with world.trainer():
        started = await world.hears(TrainerStarted, count=2)

    assert "a checkpoint of step 1 was asked for, and those of steps 2, 3 are kept" in held.reason
    assert started.step == 3 and await world.heard(RolledBack) == []


@pytest.mark.parametrize("lost", ["nonce", "predecessor"])
async def test_a_checkpoint_that_the_journal_does_not_explain_holds_the_run(lost: str, make_world: MakeWorld) -> None:
    """A power loss took the journal's end: what was committed there is in the store alone."""
    world = await committed_world(make_world, num_steps=2)
    last = await newest(world)
    facts = json.loads(world.store.read(f"{last.checkpoint}/{MANIFEST}"))
    stray = f"{RUN}/checkpoints/00000003-1-stray"
    world.store.write(f"{stray}/{MANIFEST}", json.dumps({**facts, lost: "of another life"}).encode())
    async with world.trainer():
        held = await world.hears(RunHeld)
    await world.journal.publish(ResumeRequested(run=RUN, request="q1", checkpoint_step=2))
    async with world.trainer():
        started = await world.hears(TrainerStarted, count=2)
    async with world.trainer():
        await world.hears(TrainerStarted, count=3)

    assert stray in held.reason
    assert started.step == 2 and (await world.heard(RolledBack))[0].passed_over == (stray,)
    assert len(await world.heard(RunHeld)) == 1


async def test_a_checkpoint_that_never_came_to_its_commit_holds_nothing(make_world: MakeWorld) -> None:
    """Its claim is in the journal, so it is garbage of a killed writer, and goes with the next commit of a later line."""
    world = await committed_world(make_world)
    last = await newest(world)
    facts = json.loads(world.store.read(f"{last.checkpoint}/{MANIFEST}"))
    garbage = f"{RUN}/checkpoints/00000002-1-garbage"
    world.store.write(f"{garbage}/{MANIFEST}", json.dumps({**facts, "predecessor": last.checkpoint}).encode())
    async with world.trainer():
        await world.hears(TrainerStarted, count=2)
        await feed(world, ["g2", "g3"])
        await world.hears(StepsCommitted, count=2)
        async with asyncio.timeout(10):
            while world.store.exists(f"{garbage}/{MANIFEST}"):
                await asyncio.sleep(0.02)

    assert await world.heard(RunHeld) == []


async def test_a_store_that_is_away_is_waited_for(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no damage: reads that fail for another reason say nothing of the bytes."""
    from seamlessflow.errors import Unavailable

    world = await committed_world(make_world)
    real, away = checkpoints.fetch_folder, iter(range(2))

    def fetch(store, path, target):
        if next(away, None) is not None:
            raise Unavailable("the store is away")
        return real(store, path, target)

    monkeypatch.setattr(checkpoints, "fetch_folder", fetch)
    monkeypatch.setattr("seamlessflow_trainer.blocking_work.RETRY_SECONDS", 0.02)
    async with world.trainer():
        await world.hears(TrainerStarted, count=2)

    assert await world.heard(RunHeld) == []


async def test_what_an_earlier_release_takes_for_the_newest_checkpoint_stops_it_with_a_sentence(make_world: MakeWorld) -> None:
    """It takes the highest number, and reads the account of groups as events, one of which has this sentence as its run."""
    world = await committed_world(make_world)
    names = [name for name in world.store.folders(f"{RUN}/checkpoints") if name.isdigit()]
    facts = json.loads(world.store.read(f"{RUN}/checkpoints/{names[-1]}/{MANIFEST}"))

    assert names == [BARRIER] and facts["files"] == {}
    with pytest.raises(ValueError, match="is trained by a later release of SeamlessFlow") as wrong:
        [GroupTrained.model_validate(fields) for fields in facts["trained"]]
    assert BARRIER_TEXT in str(wrong.value)


async def test_what_an_earlier_release_publishes_behind_a_claim_swallows_nothing_of_ours(make_world: MakeWorld) -> None:
    """Its late end of training is stored first, under an id of its own; ours is stored as well, and counts."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.journal.publish(TrainingEnded(run=RUN, step=7, weights_version=0))
        await world.journal.publish(GroupDropped(run=RUN, group="g0", reason=DropReason.FAILED))
        await feed(world, ["g0", "g1"])
        ended = await world.hears(TrainingEnded, count=2)
    async with world.trainer():
        await asyncio.sleep(0.3)

    assert ended.step == 1 and ended.nonce
    assert [each.group for each in await world.heard(GroupTrained)] == ["g1"]
    assert [sorted(each.groups) for each in await world.heard(StepsCommitted)] == [["g0", "g1"]]
    assert len(await world.heard(TrainerClaimed)) == 1


async def test_a_group_that_an_earlier_release_dropped_behind_a_claim_is_trained_all_the_same(make_world: MakeWorld) -> None:
    """The next trainer folds the journal as everybody does, and holds the group's samples."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.journal.publish(GroupDropped(run=RUN, group="g0", reason=DropReason.FAILED))
    async with world.trainer():
        await world.hears(TrainerStarted, count=2)
        await feed(world, ["g0", "g1"])
        committed = await world.hears(StepsCommitted)

    assert sorted(committed.groups) == ["g0", "g1"]
