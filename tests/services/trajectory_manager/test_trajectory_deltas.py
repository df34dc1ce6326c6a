"""Deltas: text of stored tokens, hinted to who reads along before the answer is there.

a segment is handled      its certain text goes out, each text once
a manager takes over      it begins at 0 again, the reader drops what it has
the answer comes          it begins with what was hinted; where not, that is counted
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import AnswerDelta, CallAnswered, GenerationRequested, SegmentSampled
from seamlessflow.telemetry import _counts
from seamlessflow.tokenization.tokenizer import THINK, THOUGHT
from seamlessflow_trajectory_manager.rendering.text_deltas import Deltas
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from tests.domain import trajectory_builders as pure
from tests.domain.trajectory_builders import CALC, renderer, user
from tests.services.trajectory_manager.test_trajectory_service import no_difference
from tests.services.trajectory_manager.trajectory_world import World, content_of

TOOL_CALL = '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'
TEXTS = ["seven", "a漢é", f"{THINK}\nhm hm\n{THOUGHT}\n\nit is seven", f"let me see \n{TOOL_CALL} so", "\n \n", "b STOP c"]


def deltas_of(manager: Manager) -> Deltas:
    return Deltas(renderer(), manager.terms_of)


def after(deltas: Deltas, manager: Manager, event: SegmentSampled) -> AnswerDelta | None:
    call = manager.call(event.episode, event.generation)
    assert call is not None
    return deltas.after_segment(call)


def reasoning_of(deltas: Sequence[AnswerDelta]) -> str:
    moved = [each.model_copy(update={"content": each.reasoning, "content_start": each.reasoning_start}) for each in deltas]
    return content_of(moved)


@settings(max_examples=150, deadline=None)
@given(
    said=st.sampled_from(TEXTS),
    cuts=st.sets(st.integers(1, 90), max_size=8),
    restarts=st.sets(st.integers(0, 9), max_size=3),
    with_tools=st.booleans(),
    moved=st.integers(0, 9),
)
def test_a_reader_has_the_beginning_of_the_answer(said: str, cuts: set[int], restarts: set[int], with_tools: bool, moved: int):
    """Whatever the segments, whoever took over in between, and though a segment comes late or twice."""
    world = pure.World()
    tools = [CALC] if with_tools else None
    (request,) = world.tells(world.agent.asks([user("q")], tools, stream=True, stop=("STOP",), reply="inbox"))
    assert isinstance(request, GenerationRequested) and request.stream
    deltas, hinted = deltas_of(world.manager), []
    *events, end = world.engine.generates(request, said + "<|im_end|>", cuts=sorted(cuts))
    segments = [event for event in events if isinstance(event, SegmentSampled)]
    late = segments.pop(moved % len(segments))
    for number, event in enumerate([*segments, *segments[:1], late]):
        if number in restarts:
            deltas = deltas_of(world.manager)
        assert world.tells(event) == []
        delta = after(deltas, world.manager, event)
        hinted += [] if delta is None else [delta]
    answer = next(each for each in world.tells(end))
    assert isinstance(answer, CallAnswered)
    content, reasoning = answer.message["content"] or "", answer.message.get("reasoning_content", "")
    assert str(content).startswith(content_of(hinted)) and str(reasoning).startswith(reasoning_of(hinted))
    before = _counts["answers_unlike_their_deltas", ""]
    deltas.answered(answer)
    assert _counts["answers_unlike_their_deltas", ""] == before and not deltas._open


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"reply": "inbox"}])
def test_nothing_is_made_for_nobody(fields: dict[str, object]):
    """A call that is not streamed, or that nobody waits for."""
    world = pure.World()
    (request,) = world.tells(world.agent.asks([user("q")], **fields))
    assert isinstance(request, GenerationRequested)
    deltas = deltas_of(world.manager)
    _, segment, _ = world.engine.generates(request, "seven")
    assert isinstance(segment, SegmentSampled)
    world.tells(segment)
    assert after(deltas, world.manager, segment) is None and not deltas._open


def test_an_answer_unlike_what_was_hinted_is_counted_and_stands():
    """It would be our mistake, and the journal is right."""
    world = pure.World()
    (request,) = world.tells(world.agent.asks([user("q")], stream=True, reply="inbox"))
    assert isinstance(request, GenerationRequested)
    _, segment, _ = world.engine.generates(request, "seven")
    assert isinstance(segment, SegmentSampled)
    world.tells(segment)
    for text, counted in (("seven!", 0), ("eight", 1), ("sev", 1)):
        deltas = deltas_of(world.manager)
        assert after(deltas, world.manager, segment) is not None
        before = _counts["answers_unlike_their_deltas", ""]
        message = {"role": "assistant", "content": text}
        deltas.answered(CallAnswered(run=segment.run, episode=segment.episode, call=segment.generation, message=message))
        assert _counts["answers_unlike_their_deltas", ""] - before == counted


def test_a_stream_that_fails_costs_nobody_the_answer(monkeypatch: pytest.MonkeyPatch):
    """It falls silent."""

    def fails(*_: object) -> tuple[str, str]:
        raise RecursionError("too deep")

    world = pure.World()
    (request,) = world.tells(world.agent.asks([user("q")], stream=True, reply="inbox"))
    assert isinstance(request, GenerationRequested)
    monkeypatch.setattr("seamlessflow_trajectory_manager.rendering.text_stream.TextStream.feed", fails)
    deltas = deltas_of(world.manager)
    for event in world.engine.generates(request, "seven", cuts=[2])[:-1]:
        if isinstance(event, SegmentSampled):
            world.tells(event)
            assert after(deltas, world.manager, event) is None


async def asked(world: World, **fields: object) -> GenerationRequested:
    event = await world.ask([user("q")], stream=True, **fields)
    return await world.found(GenerationRequested, generation=event.call)


async def test_text_is_hinted_while_it_is_sampled(world: World):
    """Long before the end of the generation is there; the answer has the rest."""
    await world.start_manager()
    request = await asked(world)
    events = world.engine.generates(request, "it is seven<|im_end|>", cuts=[3, 6])
    for event, text in zip(events[1:3], ["it ", "it is "], strict=True):
        await world.journal.publish(event)
        await world.shown(text)
    assert world.hints == [] and [each.content_start for each in world.deltas] == [0, 3]
    for event in events[3:]:
        await world.journal.publish(event)
    answer = await world.answer(request.generation)
    assert answer.message["content"] == "it is seven"
    await world.queue_is_empty()
    assert world.hints == [answer]
    assert await no_difference(world) == 2


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_the_next_manager_goes_on_showing(world: World, how: str):
    """From the beginning, since nobody knows what its predecessor has hinted."""
    old = await world.start_manager()
    request = await asked(world)
    events = world.engine.generates(request, "it is seven<|im_end|>", cuts=[3, 6, 9])
    await world.journal.publish(events[1])
    await world.shown("it ")
    await (old.stop() if how == "stop" else old.kill())
    await world.journal.publish(events[2])
    await world.start_manager()
    await world.journal.publish(events[3])
    deltas = await world.shown("it is sev", since=1)
    assert deltas[0].content_start == 0
    for event in events[4:]:
        await world.journal.publish(event)
    assert (await world.answer(request.generation)).message["content"] == "it is seven"
    assert await no_difference(world) == 2


async def test_streams_of_several_calls_do_not_mix(world: World):
    """Each delta names its call and counts for itself."""
    await world.start_manager()
    requests = [await asked(world) for _ in range(3)]
    texts = ["one!!", "two!!", "three"]
    generations = [world.engine.generates(each, text, cuts=[2, 4]) for each, text in zip(requests, texts, strict=True)]
    for events in zip(*(each[:-1] for each in generations), strict=True):
        for event in events:
            await world.journal.publish(event)

    def shown(request: GenerationRequested) -> str:
        return content_of([each for each in world.deltas if each.call == request.generation])

    async with asyncio.timeout(12):
        while [shown(each) for each in requests] != texts:
            await asyncio.sleep(0.001)


async def test_after_the_end_of_the_episode_nothing_more_is_shown(world: World):
    """Whatever ends a call ends its stream; a worker may not have heard of it yet."""
    await world.start_manager()
    request = await asked(world)
    _, first, second, _ = world.engine.generates(request, "seven", cuts=[2])
    await world.journal.publish(first)
    await world.shown("se")
    await world.journal.publish(world.agent.ends(num_calls=1))
    error = (await world.answer(request.generation)).error
    assert error is not None and error.status == 409
    await world.journal.publish(second)
    await world.queue_is_empty()
    assert content_of(world.deltas) == "se"
