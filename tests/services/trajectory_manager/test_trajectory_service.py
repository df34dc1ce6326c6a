"""The service over a memory bus: agents ask, a scripted worker samples, managers start, stop and die in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from seamlessflow.bus.base import Message
from seamlessflow.bus.memory.queue import MemoryConsumer
from seamlessflow.contracts import (
    CallAnswered,
    DeadLetter,
    EpisodeEvaluated,
    EpisodeStatus,
    GenerationRequested,
    Lease,
    RunStopRequested,
    SamplesReady,
)
from seamlessflow.contracts.routes import CONTROL_STREAM
from seamlessflow.contracts.streams import control_streams, journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BadInput
from seamlessflow.runtime import read_lease
from seamlessflow.weights import model_path, publish_folder
from seamlessflow_trajectory_manager.replay import replay_run, report
from seamlessflow_trajectory_manager.replay_comparison import replay
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from tests.domain.trajectory_builders import CALC, ORIGIN, RUN, renderer, user
from tests.services.trajectory_manager.trajectory_world import NODE, World

TOOL_CALL = '<tool_call>{"name": "calc", "arguments": {"expression": "3+4"}}</tool_call>'


async def no_difference(world: World) -> int:
    """A fresh manager says what was said; how many facts that were."""
    compared = await replay_run(world.bus, world.store, RUN)
    assert compared.differences == [] and compared.num_pending == 0
    return compared.num_compared


async def test_an_episode_with_tools_from_call_to_sample(world: World):
    """Two turns and a tool between them are one path, all sampled tokens trained."""
    await world.start_manager()
    first = await world.turn([user("3+4?")], TOOL_CALL, tools=[CALC])
    (call,) = first.message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
    second = await world.turn([user("3+4?"), first.message, result], "it is 7", tools=[CALC])
    await world.journal.publish(world.agent.ends(num_calls=2))
    ready = await world.found(SamplesReady)
    (sample,) = ready.samples
    assert second.message["content"] == "it is 7"
    assert list(sample.token_ids) == world.engine.fed[second.call] + world.engine.sampled[second.call]
    assert len(sample.spans) == 2 and sample.num_sampled == ready.num_sampled
    await world.queue_is_empty()
    assert await no_difference(world) == 5


async def test_answers_are_stored_and_then_hinted(world: World):
    """A waiting gateway need not poll; what it is hinted is what is stored."""
    await world.start_manager()
    answer = await world.turn([user("q")], "seven")
    await world.queue_is_empty()
    assert world.hints[0] == answer


async def test_parallel_calls_are_answered_each(world: World):
    """Sub-agents and parallel requests of one episode."""
    await world.start_manager()
    world.script += ["one", "two", "three"]
    calls = [await world.ask([user("q")]) for _ in range(3)]
    answers = [await world.answer(call.call) for call in calls]
    assert sorted(answer.message["content"] for answer in answers) == ["one", "three", "two"]
    await world.journal.publish(world.agent.ends(num_calls=3))
    assert len((await world.found(SamplesReady)).samples) == 3


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("num_said", [0, 1, 2, 3, 4])
async def test_a_restart_in_the_middle_of_a_call_changes_nothing(world: World, how: str, num_said: int):
    """Whatever of a generation was said when the manager went, the next one goes on from there."""
    old = await world.start_manager()
    first = await world.turn([user("q")], "seven")
    asked = await world.ask([user("q"), first.message, user("r")])
    request = await world.found(GenerationRequested, generation=asked.call)
    await world.generate(request, "eight<|im_end|>", upto=num_said)
    await (old.stop() if how == "stop" else old.kill())
    new = await world.start_manager()
    for event in world.engine.generates(request, "eight<|im_end|>", cuts=[2])[num_said:]:
        await world.journal.publish(event)
    answer = await world.answer(asked.call)
    following = await world.turn([user("q"), first.message, user("r"), answer.message, user("s")], "nine")
    assert (answer.message["content"], following.message["content"]) == ("eight", "nine")
    await world.journal.publish(world.agent.ends(num_calls=3))
    (sample,) = (await world.found(SamplesReady)).samples
    assert len(sample.spans) == 3
    await new.stop()
    assert await no_difference(world) == 7


async def test_what_a_dead_manager_had_not_said_is_said(world: World):
    """Unacknowledged events come again, also those of an episode whose end is already stored."""
    old = await world.start_manager()
    asked = await world.ask([user("q")])
    request = await world.found(GenerationRequested, generation=asked.call)
    await world.queue_is_empty()
    await old.kill()
    await world.generate(request, "seven<|im_end|>")
    await world.journal.publish(world.agent.ends(num_calls=1))
    await world.start_manager()
    answer = await world.answer(asked.call)
    ready = await world.found(SamplesReady)
    assert answer.message["content"] == "seven" and ready.num_sampled == 6 and len(ready.samples) == 1
    assert await no_difference(world) == 3


async def test_events_that_another_manager_acknowledged_are_read_from_the_journal(world: World):
    """A manager that was presumed dead may still take a delivery; the journal has it all the same."""
    await world.start_manager()
    asked = await world.ask([user("q")])
    request = await world.found(GenerationRequested, generation=asked.call)
    await world.queue_is_empty()
    stolen = steal(world)
    await world.generate(request, "seven<|im_end|>", upto=2)
    assert stolen() == 2
    for event in world.engine.generates(request, "seven<|im_end|>", cuts=[2])[2:]:
        await world.journal.publish(event)
    assert (await world.answer(asked.call)).message["content"] == "seven"


def steal(world: World) -> Callable[[], int]:
    """Take the next deliveries away from the manager and acknowledge them; the returned function stops and counts."""
    consumer = world.server.consumer(f"QMANAGER_{RUN}", "shard-0")
    assert isinstance(consumer, MemoryConsumer)
    takers = list(consumer._takers)
    consumer._takers.clear()

    def stop() -> int:
        stolen = list(consumer._ready)
        for seq in stolen:
            consumer.remove(seq)
        consumer._takers.extend(takers)
        return len(stolen)

    return stop


async def test_an_end_answers_open_calls_with_409(world: World):
    """So does a call that comes after the end."""
    await world.start_manager()
    asked = await world.ask([user("q")])
    await world.found(GenerationRequested)
    await world.journal.publish(world.agent.ends(num_calls=1))
    late = await world.ask([user("q")])
    for call in (asked.call, late.call):
        error = (await world.answer(call)).error
        assert error is not None and error.status == 409
    assert (await world.found(SamplesReady)).samples == ()


async def test_an_evaluation_episode_is_evaluated(world: World):
    """No samples reach the trainer."""
    await world.start_manager()
    await world.turn([user("q")], "seven")
    await world.journal.publish(world.agent.ends(num_calls=1, origin=ORIGIN.model_copy(update={"evaluation": "after"})))
    evaluated = await world.found(EpisodeEvaluated)
    assert (evaluated.num_sampled, evaluated.weights_versions) == (6, (0, 1))
    assert await world.find(SamplesReady) is None


async def test_rubbish_is_dead_lettered_and_the_service_goes_on(world: World):
    """One bad message costs nobody else anything."""
    await world.start_manager()
    message = world.agent.asks([user("q")])
    subject = f"sf.{RUN}.call.0.{message.episode}.bad"
    await world.bus.publish(Message(subject=subject, payload=b"\xc1 rubbish", message_id="bad"))
    letter = await world.found(DeadLetter)
    assert (letter.subject, letter.service) == (subject, "trajectory-manager")
    assert (await world.turn([user("again")], "fine")).message["content"] == "fine"


async def test_a_buried_call_is_answered_with_an_error(world: World):
    """Nobody waits for its deadline, though the call could not even be read."""
    await world.start_manager()
    subject = f"sf.{RUN}.call.0.{world.agent.episode}.bad"
    await world.bus.publish(Message(subject=subject, payload=b"\xc1 rubbish", message_id="bad"))
    error = (await world.answer("bad")).error
    assert error is not None and (error.status, error.code) == (500, "call_refused")
    assert await no_difference(world) == 1  # a replay expects it, too


async def test_a_journal_with_a_buried_call_is_folded_by_the_next_manager(world: World, monkeypatch: pytest.MonkeyPatch):
    """It says what was said, and the episode goes on."""
    monkeypatch.setattr("seamlessflow.runtime.event_handlers.RETRY_SECONDS", 0.01)
    old = await world.start_manager()
    await world.turn([user("p")], "first")
    bad = world.agent.asks([user("q")], tools=[CALC])
    assert bad.tools is not None
    bad = bad.model_copy(update={"unseen": {**bad.unseen, bad.tools: {"no": "tools"}}})
    await world.journal.publish(bad)
    error = (await world.answer(bad.call)).error
    assert error is not None and (error.status, error.code) == (500, "call_refused")
    await world.queue_is_empty()
    assert "KeyError" in (await world.found(DeadLetter)).reason
    await old.kill()
    await world.start_manager()
    assert (await world.turn([user("r")], "fine")).message["content"] == "fine"
    await world.journal.publish(world.agent.ends(num_calls=3))
    assert len((await world.found(SamplesReady)).samples) == 2
    await world.queue_is_empty()
    assert await no_difference(world) == 6


async def test_a_buried_end_is_an_episode_without_samples(world: World, monkeypatch: pytest.MonkeyPatch):
    """Its group can end; what was sampled is still counted."""

    def fails(*_: object) -> None:
        raise BadInput("no samples can be made of it")

    await world.start_manager()
    await world.turn([user("q")], "seven")
    monkeypatch.setattr("seamlessflow_trajectory_manager.trajectory.episode_end.samples_of", fails)
    await world.journal.publish(world.agent.ends(num_calls=1))
    ready = await world.found(SamplesReady)
    assert (ready.status, ready.reward, ready.samples) == (EpisodeStatus.COMPLETED, 1.0, ())
    assert (ready.num_sampled, ready.num_undelivered) == (6, 6)
    assert "no samples can be made" in (await world.found(DeadLetter)).reason


async def test_it_waits_for_lease_run_and_model_and_says_so(tmp_path: Path):
    """Services start in any order."""
    world = World(tmp_path)
    running = await world.start_manager()
    presence = running.service._context.presence

    async def state(words: str) -> None:
        async with asyncio.timeout(8):
            while words not in presence.status.state:
                await asyncio.sleep(0.005)

    await state("waits for a lease")
    await world.lease()
    await state(f"waits for run {RUN}")
    await world.start_run()
    await state("waits for the model")
    await world.start_worker()
    asked = await world.ask([user("q")])
    world.script.append("seven")
    world.publish_model()
    await state(f"serves run {RUN}")
    assert (await world.answer(asked.call)).message["content"] == "seven"
    await world.close()


async def test_a_lost_lease_leaves_the_run_and_a_new_one_joins_it_again(world: World):
    """Nothing is stranded in between: what came meanwhile is handled at once after the return."""
    running = await world.start_manager()
    await world.turn([user("q")], "seven")
    await world.lease(run=None)
    async with asyncio.timeout(8):
        while running.service._context.presence.status.state != "waits for a run":
            await asyncio.sleep(0.005)
    asked = await world.ask([user("r")])
    await asyncio.sleep(0.05)
    assert await world.find(GenerationRequested, generation=asked.call) is None
    world.script.append("eight")
    await world.lease()
    assert (await world.answer(asked.call)).message["content"] == "eight"
    lease = await read_lease(world.bus, NODE)
    assert isinstance(lease, Lease) and lease.run == RUN


async def test_a_model_that_cannot_be_used_stops_the_run_and_not_the_service(world: World):
    """With a reason that reaches the run's end; the manager stays, for the next run."""
    for stream in control_streams():
        await world.bus.ensure_stream(stream)
    (Path(world.store.path(RUN, "model")) / "manifest.json").unlink()
    publish_folder(world.store, model_path(RUN), {"config.json": b"{}"}, {})
    running = await world.start_manager()

    async with asyncio.timeout(10):
        while (record := await world.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=RUN))) is None:
            await asyncio.sleep(0.01)
    stop = await world.journal.open(record)
    assert isinstance(stop, RunStopRequested)
    assert stop.reason.startswith("trajectory-manager: ") and "no tokenizer.json" in stop.reason
    await world.lease(None)
    async with asyncio.timeout(10):
        while running.service._context.presence.status.state != "waits for a run":
            await asyncio.sleep(0.01)
    world.store.remove(f"{model_path(RUN)}/manifest.json")
    world.publish_model()
    await world.lease()
    await world.turn([user("q")], "seven")
    assert not running.task.done()


async def test_a_replay_finds_what_was_said_otherwise(world: World):
    """And says where."""
    running = await world.start_manager()
    await world.turn([user("q")], "seven")
    await running.stop()
    events = [(record.subject, await world.journal.open(record)) async for record in world.bus.read(journal_stream(RUN))]
    tampered = [
        (subject, event.model_copy(update={"finish_reason": "length"}) if isinstance(event, CallAnswered) else event)
        for subject, event in events
    ]
    compared = replay(tampered, Manager(renderer(), 2000))
    assert "finish_reason: said 'length', now 'stop'" in report(compared)
    assert "compared 2  equal 1  different 1" in report(compared)
