"""Leases: taking the device, freezing, handing back, leaving; SIGTERM and the death of the engine."""

import asyncio

import pytest

from seamlessflow.contracts import (
    GenerationClaimed,
    Role,
    RoleReleased,
    RoleTaken,
    RunStopRequested,
    SegmentSampled,
    WeightsLoaded,
)
from seamlessflow.contracts.routes import CONTROL_STREAM
from seamlessflow.contracts.streams import control_streams
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BadInput
from seamlessflow.runtime import DeviceLock
from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.generations.generation_state import Pace
from tests.services.rollout_worker.rollout_world import NODE, RUN, World


async def test_a_worker_started_before_everything_else_waits_for_each_thing_and_says_so(world: World):
    """Lease, run, model folder and first weights may come in any order and at any time."""
    worker = world.worker(by_itself=True)
    status = worker.context.presence
    await world.lease()
    await world.bus.ensure_stream(_journal())
    await world.until(lambda: status.status.state == f"waits for run {RUN}")
    await world.open_run()
    await world.ask()
    await world.until(lambda: status.status.state == "waits for the trainer's model folder")
    await world.publish_model()
    await world.publish_weights(0)

    await world.until_acked()

    assert status.status.state == "sampling" and status.status.slots == 4
    assert [taken.epoch for taken in await world.said(RoleTaken)] == [1]
    assert [loaded.weights_version for loaded in await world.said(WeightsLoaded)] == [0]


async def test_nothing_is_sampled_while_another_holds_the_device(world: World):
    """The lock decides, whatever the lease says."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    trainer = DeviceLock(world.folder / "work", NODE)
    await trainer.take()
    worker = world.worker(by_itself=True)
    await world.lease()
    await world.ask()
    await world.until(lambda: worker.context.presence.status.state == "waits for the device")
    assert worker.engine.calls == [] and await world.said(RoleTaken) == []

    trainer.release()
    await world.until_acked()


async def test_a_frozen_generation_goes_on_as_if_nothing_had_been(world: World):
    """No token lost, no second claim, no redelivery meanwhile; the newest weights are loaded before the next token."""
    await world.open_run(ack_wait_seconds=0.2)
    await world.publish_model()
    await world.publish_weights(0)
    worker = world.worker()
    await world.lease()
    await world.ask(max_tokens=6)
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(2)

    epoch = await world.lease(Role.TRAIN)
    await world.until_said(RoleReleased)
    trainer = DeviceLock(world.folder / "work", NODE)
    await asyncio.wait_for(trainer.take(), 1)
    await world.publish_weights(1)
    await asyncio.sleep(0.4)  # two times ack_wait: the pings must go on
    assert worker.engine.weights_version == 0, "the device is the trainer's"
    trainer.release()
    await world.lease()
    await world.until_said(RoleTaken, 2)
    worker.engine.step(4)
    await world.until_acked()

    (released,) = await world.said(RoleReleased)
    assert (released.epoch, released.num_frozen, released.num_handed_back) == (epoch, 1, 0)
    assert len(await world.said(GenerationClaimed)) == 1
    versions = [segment.weights_version for segment in await world.said(SegmentSampled) for _ in segment.token_ids]
    assert versions == [0, 0, 1, 1, 1, 1] and await world.tokens() == [1003 + n for n in range(6)]


async def test_what_was_sampled_is_in_the_journal_before_the_device_is_released(world: World):
    """However long tokens may otherwise wait for more: after RoleReleased the journal knows of no token of that lease."""
    world.pace = Pace(few_seconds=60, longest_seconds=60)
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    worker = world.worker()
    await world.lease()
    await world.ask()
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(2)

    await world.lease(Role.TRAIN)
    await world.until_said(RoleReleased)
    assert [len(segment.token_ids) for segment in await world.said(SegmentSampled)] == [2]


async def test_a_lease_that_says_hand_back_gives_generations_to_others(world: World):
    """What was sampled is said first; another worker goes on behind it."""
    first = await world.ready()
    await world.ask(max_tokens=6)
    await world.until(lambda: first.engine.requests)
    first.engine.step(2)

    await world.lease(Role.TRAIN, hand_back=True)
    await world.until_said(RoleReleased)
    world.worker("n2", by_itself=True)
    await world.lease(node="n2")
    await world.until_acked()

    (released,) = await world.said(RoleReleased)
    assert (released.num_frozen, released.num_handed_back) == (0, 1)
    assert first.engine.is_asleep and await world.tokens() == [1003 + n for n in range(6)]


async def test_frozen_generations_are_handed_back_when_a_later_lease_says_so(world: World):
    """A trainer that needs longer than thought does not keep them from others."""
    first = await world.ready()
    await world.ask(max_tokens=6)
    await world.until(lambda: first.engine.requests)
    await world.lease(Role.TRAIN)
    await world.until_said(RoleReleased)

    await world.lease(Role.TRAIN, hand_back=True)
    await world.until_said(RoleReleased, 2)

    assert [each.num_handed_back for each in await world.said(RoleReleased)] == [0, 1]
    assert not first.engine.requests and await world.num_queued() == 1


async def test_a_worker_comes_back_after_handing_back(world: World):
    """The engine wakes, takes the newest weights, and pulls again."""
    worker = await world.ready(by_itself=True)
    await world.lease(Role.TRAIN, hand_back=True)
    await world.until_said(RoleReleased)
    await world.publish_weights(1)

    await world.lease()
    await world.ask()
    await world.until_acked()

    assert worker.engine.calls == ["start", "sleep", "stage", "load 1", "wake"]
    assert {segment.weights_version for segment in await world.said(SegmentSampled)} == {1}


async def test_a_lease_without_a_run_ends_the_stay(world: World):
    """Held generations go back, the engine is let go of, the device is free; another run may come."""
    worker = await world.ready()
    await world.ask()
    await world.until(lambda: worker.engine.requests)

    await world.lease(Role.IDLE, run=None)
    await world.until(lambda: "stop" in worker.engine.calls)
    await world.until(lambda: not (world.folder / "work" / "rollout-worker" / NODE / RUN).exists())

    assert await world.num_queued() == 1
    await asyncio.wait_for(DeviceLock(world.folder / "work", NODE).take(), 1)


async def test_only_the_tags_of_the_lease_are_pulled(world: World):
    """Holding a tag is being subscribed; losing one finishes what runs and takes nothing new."""
    worker = await world.ready(by_itself=True)
    await world.ask("c1", tag="rollout+prefill")
    await world.ask("c2")
    await world.until_ended()
    assert [end.generation for end in await world.ended()] == ["c2"]

    await world.lease(tags=("prefill+rollout",))
    await world.until_ended(2)
    await world.ask("c3")
    await asyncio.sleep(0.05)

    assert [end.generation for end in await world.ended()] == ["c2", "c1"]
    assert worker.engine.calls == ["start"]


async def test_no_more_than_the_slots_are_held_over_all_buckets(world: World):
    """Credit is shared: a quiet bucket lends its share to a busy one."""
    await world.open_run(fleet={"slots": 4, "buckets": 2})
    await world.publish_model()
    await world.publish_weights(0)
    worker = world.worker()
    await world.lease()
    for number in range(8):
        await world.ask(f"c{number}", bucket=0)

    await world.until(lambda: len(worker.engine.requests) == 4)
    await asyncio.sleep(0.02)

    assert len(worker.engine.requests) == 4


async def test_sigterm_hands_everything_back(world: World):
    """What was sampled is stored, the rest goes to the next one at once, without waiting for ack_wait."""
    worker = await world.ready()
    await world.ask(max_tokens=6)
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(3)

    await worker.terminate()
    heir = world.worker("n2", by_itself=True)
    await world.lease(node="n2")
    await world.until_acked()

    assert heir.engine.budgets == [3] and await world.tokens() == [1003 + n for n in range(6)]


async def test_a_dead_engine_ends_the_process_and_loses_no_token(world: World):
    """What it sampled is stored, what it held goes back, and the supervisor sees an error."""
    worker = await world.ready()
    await world.ask("c1", max_tokens=6)
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(3)
    worker.engine.die()

    with pytest.raises(EngineError, match="out of memory"):
        await worker.task

    world.worker("n2", by_itself=True)
    await world.lease(node="n2")
    await world.until_acked()
    assert await world.tokens() == [1003 + n for n in range(6)]


async def test_an_engine_that_hangs_is_noticed(world: World, monkeypatch):
    """Silence with generations in hand is reported with its length, and ends the process."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.OBSERVE_SECONDS", 0.02)
    worker = await world.ready()
    worker.service._settings.stall_seconds = 0.1
    await world.ask()

    with pytest.raises(EngineError, match="sampled nothing"):
        await worker.task

    assert await world.num_queued() == 1


@pytest.mark.parametrize("where", ["build", "start"])
async def test_a_model_that_cannot_be_served_stops_the_run_and_not_the_worker(world: World, where: str, monkeypatch):
    """Trying again would end the same: the reason reaches the run's end, the device is free, the next run is served."""
    for stream in control_streams():
        await world.bus.ensure_stream(stream)
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    worker = world.worker(by_itself=True)

    def refuses(*arguments: object, **options: object) -> None:
        raise BadInput("it has 9 heads on 2 necks")

    good_build, good_start = worker.service._build, worker.engine.start
    if where == "build":
        worker.service._build = refuses
    else:
        monkeypatch.setattr(worker.engine, "start", refuses)
    await world.lease()

    async def stop_asked() -> bool:
        record = await world.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=RUN))
        event = None if record is None else await worker.context.journal.open(record)
        return event == RunStopRequested(run=RUN, reason="rollout-worker: it has 9 heads on 2 necks")

    await world.until(stop_asked)
    await asyncio.wait_for(_take_and_release(world), 1)
    assert worker.context.presence.status.state == "failed: it has 9 heads on 2 necks" and not worker.task.done()
    assert await world.said(RoleTaken) == []

    worker.service._build = good_build
    monkeypatch.setattr(worker.engine, "start", good_start)
    await world.lease(Role.IDLE, run=None)
    await world.until(lambda: worker.context.presence.status.state == "idle")
    await world.lease()
    await world.ask()
    await world.until_acked()


async def _take_and_release(world: World) -> None:
    lock = DeviceLock(world.folder / "work", NODE)
    await lock.take()
    lock.release()


async def test_presence_shows_what_the_worker_does(world: World, monkeypatch):
    """Model, version, speed and load, for people and policies."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.OBSERVE_SECONDS", 0.02)
    worker = await world.ready()
    await world.ask()
    await world.until(lambda: worker.context.presence.status.facts.get("generations") == 1)

    facts = worker.context.presence.status.facts
    assert facts["model"] == "tiny" and facts["weights_version"] == 0 and "tokens_per_second" in facts

    await world.lease(Role.IDLE)
    await world.until(lambda: worker.context.presence.status.state == "frozen")
    await world.until(lambda: worker.context.presence.status.facts["tokens_per_second"] == 0)
    assert worker.context.presence.status.facts["generations"] == 1
    await world.lease(Role.IDLE, run=None)
    await world.until(lambda: worker.context.presence.status.state == "idle")
    await asyncio.sleep(0.05)
    status = worker.context.presence.status
    assert (status.facts, status.slots, status.engine) == ({}, 0, ""), "of a run that is over nothing is shown"


def _journal():
    from seamlessflow.contracts.streams import run_streams

    return run_streams(RUN)[0]
