"""The ends of a call over a memory bus: stop texts, logprobs, clients that go, raw prompts; a fresh manager says the same."""

from __future__ import annotations

from typing import Any

import pytest

from seamlessflow.bus.base import Delivery, Handler, Subscription
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import CallAnswered, GenerationEnded, GenerationFinish, GenerationRequested, SamplesReady
from tests.domain.trajectory_builders import ids_of, user
from tests.services.trajectory_manager.test_trajectory_service import no_difference
from tests.services.trajectory_manager.trajectory_world import World, content_of


async def samples(
    world: World, request: GenerationRequested, said: str, finish: GenerationFinish, cuts: list[int]
) -> CallAnswered:
    """As a worker whose generation ends so."""
    for event in world.engine.generates(request, said, cuts=cuts):
        is_end = isinstance(event, GenerationEnded)
        await world.journal.publish(event.model_copy(update={"finish": finish}) if is_end else event)
    return await world.answer(request.generation)


async def asks(world: World, messages: list[dict[str, Any]], **fields: Any) -> GenerationRequested:
    event = await world.ask(messages, **fields)
    return await world.found(GenerationRequested, generation=event.call)


async def test_a_stop_text_over_several_segments_is_never_shown(world: World):
    """Nor is what it may have been the beginning of, until it is not."""
    await world.start_manager()
    request = await asks(world, [user("q")], stream=True, stop=("\nSTOP",))
    assert (request.stop, request.stream) == (("\nSTOP",), True)
    answer = await samples(world, request, "a\nST, b\nSTOP", GenerationFinish.STOP, cuts=[3, 6, 9])
    assert (answer.message["content"], answer.stop_sequence, answer.finish_reason) == ("a\nST, b", "\nSTOP", "stop")
    await world.queue_is_empty()
    assert content_of(world.deltas) == "a\nST, b"
    assert world.hints == [answer]
    assert await no_difference(world) == 2


async def test_logprobs_reach_the_gateway(world: World):
    """Packed, and stored with the answer."""
    await world.start_manager()
    request = await asks(world, [user("q")], logprobs=True)
    answer = await samples(world, request, "a漢<|im_end|>", GenerationFinish.STOP, cuts=[3])
    assert answer.tokens is not None and "".join(answer.tokens.texts) == "a漢"
    await world.queue_is_empty()
    assert world.hints == [answer]
    assert await no_difference(world) == 2


async def test_a_cancelled_call_is_answered_and_never_trained(world: World):
    """Its tokens are in the tree and in the count."""
    await world.start_manager()
    await world.turn([user("p")], "first")
    answer = await samples(world, await asks(world, [user("q")]), "seve", GenerationFinish.CANCELLED, cuts=[2])
    assert answer.error is not None and (answer.error.status, answer.error.code) == (499, "client_gone")
    await world.journal.publish(world.agent.ends(num_calls=2))
    ready = await world.found(SamplesReady)
    assert (ready.num_sampled, ready.num_undelivered, ready.num_roots, len(ready.samples)) == (10, 4, 2, 1)
    await world.queue_is_empty()
    assert await no_difference(world) == 5


@pytest.mark.parametrize("restarts", [False, True])
async def test_raw_prompts_go_on_from_each_other(world: World, restarts: bool):
    """Also where another manager has read the first turn from the journal."""
    first_manager = await world.start_manager()
    said = await samples(
        world, await asks(world, [{"role": "prompt", "content": "a b"}]), " c", GenerationFinish.LENGTH, cuts=[]
    )
    assert said.message == {"role": "assistant", "content": " c"}
    if restarts:
        await first_manager.kill()
        await world.start_manager()
    request = await asks(world, [{"role": "prompt", "content": "a b c d"}], stream=True)
    assert (request.parent, list(request.suffix)) == (said.call, ids_of(" d"))
    await samples(world, request, " <think>e<|im_end|>", GenerationFinish.STOP, cuts=[4])
    await world.shown(" <think>e")
    await world.journal.publish(world.agent.ends(num_calls=2))
    (sample,) = (await world.found(SamplesReady)).samples
    assert len(sample.spans) == 2
    await world.queue_is_empty()
    assert await no_difference(world) == 5


class LosesFirstEnd(MemoryBus):
    """The first delivery of an episode's end is lost with its connection; it comes again."""

    has_lost = False

    async def consume(self, stream: str, consumer: str, handler: Handler, **options: Any) -> Subscription:
        async def on_delivery(delivery: Delivery) -> None:
            if delivery.subject.endswith(".ended") and not self.has_lost:
                self.has_lost = True
            else:
                await handler(delivery)

        return await super().consume(stream, consumer, on_delivery, **options)


async def test_tokens_behind_an_end_whose_delivery_was_lost_are_not_trained(world: World):
    """They are delivered before it comes again; its place in the journal counts."""
    bus = LosesFirstEnd(world.server)
    await world.start_manager(bus)
    await world.turn([user("p")], "first")
    request = await asks(world, [user("q")])
    await world.journal.publish(world.agent.ends(num_calls=2))
    await samples(world, request, "second", GenerationFinish.STOP, cuts=[2])
    ready = await world.found(SamplesReady)
    assert bus.has_lost
    assert (ready.num_sampled, len(ready.samples)) == (6, 1)
