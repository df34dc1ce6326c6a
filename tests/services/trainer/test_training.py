"""The trainer as a service over a real (in-memory) bus: steps, roles, groups, the end of a run, and learning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch

from seamlessflow.contracts import (
    BatchReady,
    DeadLetter,
    DropReason,
    EpisodeStatus,
    GroupDropped,
    GroupTrained,
    Role,
    RoleReleased,
    RoleTaken,
    RunStopRequested,
    StepsCommitted,
    StepTaken,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
    WeightsPublished,
)
from seamlessflow.runtime import DeviceLock
from seamlessflow.weights import fetch_folder, folders_of_versions, model_path
from seamlessflow_trainer.steps.checkpoints import BARRIER
from tests.services.trainer.trainer_world import ACK_WAIT_SECONDS, NODE, RUN, World, by_index, make_tiny_llama, samples_ready

MakeWorld = Callable[..., Awaitable[World]]


async def until_queue_is_empty(world: World, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while await world.queued():
            await asyncio.sleep(0.01)


async def test_a_run_from_start_to_end(make_world: MakeWorld) -> None:
    """Two steps of two groups: every fact in its order, versions 0, 1, 2, everything committed and acknowledged."""
    world = await make_world(steps=2)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        for step in (1, 2):
            policy = await world.policy()
            for name in "ab":
                await world.answer(f"{name}{step}", by_index(), policy=policy)
            await world.hears(StepTaken, count=step)
        await world.hears(TrainingEnded)
        await until_queue_is_empty(world)

    steps = await world.heard(StepTaken)
    assert [(s.step, s.line, s.weights_version, sorted(s.groups)) for s in steps] == [
        (1, 1, 1, ["a1", "b1"]),
        (2, 1, 2, ["a2", "b2"]),
    ]
    assert [(p.weights_version, p.step) for p in await world.heard(WeightsPublished)] == [(0, 0), (1, 1), (2, 2)]
    assert [b.step for b in await world.heard(BatchReady)] == [1, 2]
    trained = await world.heard(GroupTrained)
    assert [(g.group, g.step) for g in trained] == [("a1", 1), ("b1", 1), ("a2", 2), ("b2", 2)]
    assert all(e.trained == 4 and not e.masked for g in trained for e in g.episodes)
    [committed] = await world.heard(StepsCommitted)
    assert (committed.step, set(committed.groups)) == (2, {"a1", "b1", "a2", "b2"})
    [ended] = await world.heard(TrainingEnded)
    assert (ended.step, ended.weights_version, (await world.head()).weights_version) == (2, 2, 2)


async def test_logprobs_agree_with_plain_transformers(make_world: MakeWorld) -> None:
    """The gap over tokens of the current version is rounding alone; every ratio is one."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        for name in "ab":
            await world.answer(name, by_index(), policy=policy)
        metrics = (await world.hears(StepTaken)).metrics

    assert metrics["logprob_gap"] < 5e-6
    assert metrics["importance_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert (metrics["reward"], metrics["reward/sums"], metrics["num_groups"]) == (0.5, 0.5, 2.0)
    assert (metrics["trained_tokens"], metrics["masked_tokens"], metrics["completion_tokens"]) == (16.0, 0.0, 4.0)
    assert {"loss", "grad_norm", "learning_rate", "truncated_fraction", "staleness_mean", "staleness_max"} <= set(metrics)
    assert {"seconds_wait", "seconds_train", "seconds_publish"} <= set(metrics)


async def test_a_learning_rate_of_zero_publishes_the_very_same_weights(make_world: MakeWorld) -> None:
    """Bit for bit: the self-check of the whole loop."""
    world = await make_world(steps=1, learning_rate=0.0)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        before = await world.weights()
        policy = await world.policy()
        for name in "ab":
            await world.answer(name, by_index(), policy=policy)
        await world.hears(StepTaken)
    after = await world.weights()

    assert all(torch.equal(before[name], after[name]) for name in before)


async def test_it_learns_a_bandit(make_world: MakeWorld) -> None:
    """A reward for one token makes it likely: the whole way from samples to published weights."""
    world = await make_world(steps=15, group_size=8, learning_rate=2e-2, max_staleness=5)
    await world.lease(Role.TRAIN)
    wanted, prompt = 7, (3, 4, 5)
    async with world.trainer():
        await world.hears(TrainerStarted)
        first = float((await world.policy()).logprobs(prompt)[-1, wanted].exp())
        step, group = 0, 0
        while step < 15 and not await world.heard(TrainingEnded):
            policy = await world.policy()
            await world.answer(f"g{group}", lambda a: float(a[0] == wanted), policy=policy, members=range(8), num_tokens=1)
            group += 1
            await asyncio.sleep(0.01)
            step = len(await world.heard(StepTaken))
            if float(policy.logprobs(prompt)[-1, wanted].exp()) > 0.8:
                break
        last = float((await world.policy()).logprobs(prompt)[-1, wanted].exp())

    assert first < 0.3
    assert last > 0.7


async def test_it_steps_only_while_the_lease_says_train(make_world: MakeWorld) -> None:
    """It joins and says its batch ready on a rollout lease; it takes the device lock on train and lets go afterwards."""
    world = await make_world(steps=2)
    lock = DeviceLock(world.folder / "work", NODE)
    first = await world.lease(Role.ROLLOUT)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        for name in "ab":
            await world.answer(name, by_index(), policy=policy)
        await world.hears(BatchReady)
        await lock.take()  # as the rollout-worker holds it
        second = await world.lease(Role.TRAIN)
        await asyncio.sleep(0.8)
        assert await world.heard(StepTaken) == [] and await world.heard(RoleTaken) == []
        lock.release()
        await world.hears(StepTaken)
        third = await world.lease(Role.ROLLOUT)
        await world.hears(RoleReleased, count=2)
        await asyncio.wait_for(lock.take(), 1)
        lock.release()

    assert [r.epoch for r in await world.heard(RoleReleased)] == [first, third]
    assert [r.epoch for r in await world.heard(RoleTaken)] == [second]


async def test_it_leaves_a_run_that_its_lease_no_longer_names(make_world: MakeWorld) -> None:
    """Samples go back to the queue at once, for the next trainer, and the device is free."""
    world = await make_world()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.answer("a", by_index(), policy=await world.policy())
        await world.lease(Role.IDLE, run=None, trainer=False)
        lock = DeviceLock(world.folder / "work", NODE)
        await asyncio.wait_for(lock.take(), 10)
        lock.release()

        assert await world.queued() == 2


async def test_redelivered_samples_train_once(make_world: MakeWorld) -> None:
    """Held for longer than the queue's patience, they come again; the group still has two members and one end."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        await world.answer("a", by_index(), policy=policy)
        await asyncio.sleep(2.5 * ACK_WAIT_SECONDS)
        await world.answer("b", by_index(), policy=policy)
        step = await world.hears(StepTaken)
        await world.hears(TrainingEnded)
        await until_queue_is_empty(world)

    assert step.metrics["trained_tokens"] == 16.0
    assert [g.group for g in await world.heard(GroupTrained)] == ["a", "b"]


async def test_groups_that_teach_nothing_are_dropped_at_once(make_world: MakeWorld) -> None:
    """Said and acknowledged without a checkpoint; equal rewards still count in the mean reward."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        await world.answer("equal", lambda answer: 1.0, policy=policy)
        failed = [samples_ready("failed", i, [], None, attempt=1, status=EpisodeStatus.DEADLINE) for i in (0, 1)]
        await world.journal.publish_all(failed)
        await world.hears(GroupDropped, count=2)
        await until_queue_is_empty(world)
        for name in "ab":
            await world.answer(name, by_index(), policy=policy)
        metrics = (await world.hears(StepTaken)).metrics

    reasons = {d.group: d.reason for d in await world.heard(GroupDropped)}
    assert reasons == {"equal": DropReason.ZERO_VARIANCE, "failed": DropReason.FAILED}
    assert metrics["reward"] == pytest.approx(4 / 6)


async def test_a_group_that_became_too_old_is_dropped_as_stale(make_world: MakeWorld) -> None:
    """max_staleness 0: what version 0 sampled is of no use after a step."""
    world = await make_world(steps=2, max_staleness=0)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        old = await world.policy()
        for name in ("a", "b", "late"):
            await world.answer(name, by_index(), policy=old)
        dropped = await world.hears(GroupDropped)
        for name in ("c", "d"):
            await world.answer(name, by_index(), policy=await world.policy())
        await world.hears(TrainingEnded)

    assert (dropped.group, dropped.reason) == ("late", DropReason.STALE)


async def test_the_rest_is_trained_when_no_further_batch_can_be_filled(make_world: MakeWorld) -> None:
    """One last, smaller step on the one group that is complete."""
    world = await make_world(steps=9)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.answer("a", by_index(), policy=await world.policy())
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="tasks_ended", train_rest=True))
        ended = await world.hears(TrainingEnded)
        await until_queue_is_empty(world)

    assert ended.step == 1
    assert [g.group for g in await world.heard(GroupTrained)] == ["a"]


async def test_a_stopped_run_lets_go_of_the_rest_even_while_it_waits_for_the_device(make_world: MakeWorld) -> None:
    """The batch was ready and the lease never came: nothing of it is trained, and nothing is left behind."""
    world = await make_world(steps=9)
    await world.lease(Role.ROLLOUT)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        for name in "ab":
            await world.answer(name, by_index(), policy=policy)
        await world.answer("half", by_index(), policy=policy, members=[0])
        await world.hears(BatchReady)
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="stopped", train_rest=False))
        ended = await world.hears(TrainingEnded)
        await until_queue_is_empty(world)
        await world.answer("too-late", by_index(), policy=policy)
        await until_queue_is_empty(world)

    assert (ended.step, await world.heard(StepTaken)) == (0, [])
    assert await world.heard(GroupDropped) == []  # the scheduler's to drop


async def test_samples_that_cannot_be_trained_become_a_dead_letter(make_world: MakeWorld) -> None:
    """Token ids beyond the vocabulary; the run goes on with the other groups."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        sample = policy.sample([3, 4], 2)
        broken = sample.model_copy(update={"token_ids": type(sample.token_ids)([3, 4, 999, 5])})
        await world.journal.publish(samples_ready("bad", 0, [broken], 1.0))
        letter = await world.hears(DeadLetter)
        for name in "ab":
            await world.answer(name, by_index(), policy=policy)
        await world.hears(StepTaken)

    assert "another model's tokenizer" in letter.reason
    assert [(d.group, d.reason) for d in await world.heard(GroupDropped)] == [("bad", DropReason.FAILED)]


async def test_a_broken_reward_stops_the_run_with_a_reason(make_world: MakeWorld) -> None:
    """A huge reward makes the loss infinite: no step, weights as before, the run is asked to stop, and it ends orderly."""
    world = await make_world(steps=3, normalize_std=False)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        rewards = iter([3e38, -3e38, 0.0, 1.0])
        for name in "ab":
            await world.answer(name, lambda answer: next(rewards), policy=policy)
        async with asyncio.timeout(20):
            while (record := await world.bus.last("CTL", f"sf.ctl.run.{RUN}.stop")) is None:
                await asyncio.sleep(0.01)
        stop = await world.journal.open(record)
        assert isinstance(stop, RunStopRequested) and "verifiers" in stop.reason
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="stopped", train_rest=False))
        ended = await world.hears(TrainingEnded)

    assert (ended.step, ended.weights_version) == (0, 0)
    assert await world.heard(GroupDropped) == []  # the scheduler's to drop


async def test_a_model_that_does_not_exist_stops_the_run_with_a_reason(make_world: MakeWorld) -> None:
    """Trying again would end the same."""
    world = await make_world(model=Path("no-such-model"))
    await world.lease(Role.TRAIN)
    async with world.trainer():
        async with asyncio.timeout(20):
            while (record := await world.bus.last("CTL", f"sf.ctl.run.{RUN}.stop")) is None:
                await asyncio.sleep(0.01)

    stop = await world.journal.open(record)
    assert isinstance(stop, RunStopRequested) and "no-such-model" in stop.reason
    assert await world.heard(TrainingEnded) == []  # none began; the scheduler waits for none


async def test_the_model_folder_and_the_weights_load_together(make_world: MakeWorld, tmp_path: Path) -> None:
    """Fetched side by side they are a folder for ``from_pretrained``, in the served precision."""
    import transformers

    base = make_tiny_llama(tmp_path / "bf16", dtype=torch.bfloat16)
    world = await make_world(model=base)
    await world.lease(Role.ROLLOUT)
    async with world.trainer():
        await world.hears(TrainerStarted)
        fetch_folder(world.store, model_path(RUN), tmp_path / "fetched")
        fetch_folder(world.store, (await world.head()).path, tmp_path / "fetched")
    fetched, original = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for folder in (tmp_path / "fetched", base)
    )

    assert fetched.dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(fetched.parameters(), original.parameters(), strict=True))


async def test_only_the_newest_versions_and_checkpoints_stay(make_world: MakeWorld) -> None:
    """A run of many steps does not fill the store."""
    world = await make_world(steps=7, every_steps=2, max_staleness=9)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        policy = await world.policy()
        for group in range(14):
            await world.answer(f"g{group}", by_index(), policy=policy)
        await world.hears(TrainingEnded)
        await asyncio.sleep(0.2)

    assert list(folders_of_versions(world.store, f"{RUN}/weights")) == [4, 5, 6, 7]
    kept = [name.rpartition("-")[0] for name in world.store.folders(f"{RUN}/checkpoints") if name != BARRIER]
    assert kept == ["00000006-1", "00000007-1"]
    assert [c.step for c in await world.heard(StepsCommitted)] == [2, 4, 6, 7]
