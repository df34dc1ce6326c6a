"""A generation from queue to acknowledgement: claimed, sampled, said, ended, and never by two at a time."""

import asyncio

from seamlessflow.bus.base import Message
from seamlessflow.contracts import (
    CallRequested,
    Claim,
    DeadLetter,
    Float32s,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    Int32s,
    SegmentSampled,
    claim_of,
)
from seamlessflow_rollout_worker.engines.base import Chunk, Finish
from tests.contracts.examples import EXAMPLES
from tests.services.rollout_worker.rollout_world import NODE, RUN, STOP_ID, World


async def test_an_answer_that_is_there_at_once_costs_one_message(world: World):
    """A segment that is claim and end as well: then it is acknowledged and gone from the queue."""
    await world.ready(by_itself=True, stops_at=3 + 5)

    await world.ask(prompt=(1, 2, 3), max_tokens=16)
    await world.until_acked()

    (segment,) = await world.said(SegmentSampled)
    assert list(segment.token_ids) == [1003, 1004, 1005, 1006, 1007, STOP_ID]
    assert segment.finish is GenerationFinish.STOP and await world.said(GenerationEnded) == []
    assert await world.said(GenerationClaimed) == [] and claim_of(segment) == Claim(segment.generation, f"i-{NODE}", 0)
    assert segment.weights_version == 0


async def test_a_short_answer_costs_two_messages(world: World):
    """A claim while nothing is sampled yet, and one segment that carries the end."""
    worker = await world.ready(stops_at=3 + 5)
    await world.ask(prompt=(1, 2, 3), max_tokens=16)
    await world.until_said(GenerationClaimed)

    worker.engine.step(6)
    await world.until_acked()

    (claim,), (segment,) = await world.said(GenerationClaimed), await world.said(SegmentSampled)
    assert claim_of(claim) == Claim(segment.generation, f"i-{NODE}", 0)
    assert (segment.nonce, segment.worker, segment.finish) == (claim.nonce, None, GenerationFinish.STOP)
    assert claim_of(segment) is None and await world.said(GenerationEnded) == []


async def test_tokens_are_said_while_sampling_goes_on(world: World):
    """A reader need not wait for the end to see what was sampled so far."""
    worker = await world.ready()
    await world.ask(max_tokens=8)
    await world.until(lambda: worker.engine.requests)

    worker.engine.step(3)
    await world.until_tokens(3)

    assert await world.ended() == []
    worker.engine.step(5)
    await world.until_acked()
    assert await world.tokens() == [1003 + n for n in range(8)]
    assert [end.finish for end in await world.ended()] == [GenerationFinish.LENGTH]


async def test_a_dead_workers_generation_goes_on_with_the_remaining_budget(world: World):
    """Redelivery continues behind what was stored, under a new claim; the budget is the whole generation's."""
    await world.open_run(ack_wait_seconds=0.3)
    await world.publish_model()
    await world.publish_weights(0)
    first = world.worker("n1")
    await world.lease(node="n1")
    generation = (await world.ask(max_tokens=10)).generation
    await world.until(lambda: first.engine.requests)
    first.engine.step(4)
    await world.until_tokens(4)

    await first.kill()
    second = world.worker("n2", by_itself=True)
    await world.lease(node="n2")
    await world.until_ended()
    await world.until_acked()

    assert await world.tokens() == [1003 + n for n in range(10)]
    assert second.engine.budgets == [6]
    assert [(claim.worker, claim.start) for claim in await world.said(GenerationClaimed)] == [("i-n1", 0)]
    assert [claim_of(each) for each in await world.said(SegmentSampled)][1:] == [Claim(generation, "i-n2", 4)]


async def test_a_zombies_append_is_refused_and_dropped_in_silence(world: World, monkeypatch):
    """Who was presumed dead writes nothing more, and neither acks, naks nor ends what is another's now."""
    monkeypatch.setattr("seamlessflow.runtime.event_handlers.PROGRESS_SECONDS", 60.0)  # the zombie's pings do not arrive
    await world.open_run(ack_wait_seconds=0.3)
    await world.publish_model()
    await world.publish_weights(0)
    zombie = world.worker("n1")
    await world.lease(node="n1")
    await world.ask(max_tokens=10)
    await world.until(lambda: zombie.engine.requests)
    zombie.engine.step(4)
    await world.until_tokens(4)
    await world.lease(node="n1", role="train")  # frozen: it cannot take the generation again
    await world.until(lambda: zombie.engine.is_paused)
    heir = world.worker("n2")
    await world.lease(node="n2")
    await world.until_said(GenerationClaimed, 2)
    await world.until(lambda: heir.engine.requests)

    await zombie.engine.resume()
    zombie.engine.step(6)
    await world.until(lambda: not zombie.engine.requests)

    assert await world.tokens() == [1003 + n for n in range(4)]
    assert await world.ended() == [] and await world.num_queued() == 1
    heir.engine.step(6)
    await world.until_ended()
    assert await world.tokens() == [1003 + n for n in range(10)]
    assert zombie.service._tenure.num_held == 0 and not zombie.task.done()


async def test_an_end_that_was_stored_but_not_acknowledged_is_only_acknowledged(world: World):
    """Nothing is claimed or said again."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    request = await world.ask()
    same = {"run": RUN, "episode": request.episode, "generation": "c1", "shard": 0, "nonce": "old"}
    await world.publish(GenerationClaimed(**same, worker="gone", start=0))
    await world.publish(GenerationEnded(**same, finish=GenerationFinish.STOP, num_tokens=0))

    world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    assert len(await world.said(GenerationClaimed)) == 1 and await world.tokens() == []


async def test_a_last_segment_that_was_not_acknowledged_is_only_acknowledged(world: World):
    """It says that it is the last one: nothing is claimed or said again."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    request = await world.ask()
    same = {"run": RUN, "episode": request.episode, "generation": "c1", "shard": 0, "nonce": "old"}
    await world.publish(GenerationClaimed(**same, worker="gone", start=0))
    tokens = {"token_ids": Int32s([7]), "logprobs": Float32s([-1.0]), "weights_version": 0}
    await world.publish(SegmentSampled(**same, start=0, **tokens, finish=GenerationFinish.LENGTH))

    world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    assert len(await world.said(GenerationClaimed)) == 1 and await world.tokens() == [7]
    assert await world.ended() == [("c1", GenerationFinish.LENGTH, 1)]


async def test_an_end_whose_tokens_were_all_said_before_is_a_message_of_its_own(world: World):
    """Only then is it known that none comes after them: here the engine's last word has no token."""
    worker = await world.ready()
    await world.ask(max_tokens=8)
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(3)
    await world.until_tokens(3)

    (waiting,) = worker.engine.requests.values()
    waiting.put_nowait(Chunk((), (), 0, Finish.LENGTH))
    await world.until_acked()

    (end,) = await world.said(GenerationEnded)
    assert (end.finish, end.num_tokens) == (GenerationFinish.LENGTH, 3)
    assert [segment.finish for segment in await world.said(SegmentSampled)] == [None]


async def test_only_the_last_of_several_segments_says_that_it_is(world: World):
    """Those before it were stored when nobody knew; together they hold each token once."""
    worker = await world.ready()
    await world.ask(max_tokens=8)
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(3)
    await world.until_tokens(3)
    worker.engine.step(5)
    await world.until_acked()

    segments = await world.said(SegmentSampled)
    assert [segment.finish for segment in segments] == [None] * (len(segments) - 1) + [GenerationFinish.LENGTH]
    assert await world.tokens() == [1003 + n for n in range(8)]


async def test_a_generation_that_had_all_its_tokens_only_gets_its_end(world: World):
    """Its last segment did not say that it was the last: the stop token decides what the end says."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    request = await world.ask()
    same = {"run": RUN, "episode": request.episode, "generation": "c1", "shard": 0, "nonce": "old"}
    await world.publish(GenerationClaimed(**same, worker="gone", start=0))
    ids, logprobs = Int32s([7, STOP_ID]), Float32s([-1.0, -1.0])
    await world.publish(SegmentSampled(**same, start=0, token_ids=ids, logprobs=logprobs, weights_version=0))

    world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    (end,) = await world.ended()
    assert (end.finish, end.num_tokens) == (GenerationFinish.STOP, 2)
    assert await world.tokens() == [7, STOP_ID]


async def test_an_ended_episodes_generation_is_acknowledged_without_a_claim(world: World):
    """Nobody waits for its tokens."""
    worker = await world.ready(by_itself=True)
    await world.end_episode()

    await world.ask()
    await world.until_acked()

    assert await world.said(GenerationClaimed) == [] and worker.engine.budgets == []


async def test_sampling_stops_when_the_episode_ends_meanwhile(world: World, monkeypatch):
    """The slot is free again within seconds, not at the end of the budget."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.PROGRESS_SECONDS", 0.05)
    worker = await world.ready()
    await world.ask()
    await world.until(lambda: worker.engine.requests)

    await world.end_episode()
    await world.until_acked()

    assert not worker.engine.requests and await world.ended() == []


async def test_the_prompt_of_a_later_turn_is_its_ancestors_tokens_and_its_suffix(world: World):
    """A worker that never saw the episode reads the chain from the journal; one that sampled it reads nothing."""
    worker = await world.ready(by_itself=True)
    await world.ask("c1", prompt=(1, 2, 3), max_tokens=2)
    await world.until_acked()
    await world.ask("c2", prompt=(8,), parent="c1", parent_tokens=5, max_tokens=2)
    await world.until_acked()
    await worker.terminate()

    stranger = world.worker("n2")
    await world.lease(node="n2")
    fed: list[list[int]] = []
    generate = stranger.engine.generate
    stranger.engine.by_itself = True
    stranger.engine.generate = lambda request_id, ids, params: fed.append(ids) or generate(request_id, ids, params)
    await world.ask("c3", prompt=(9, 9), parent="c2", parent_tokens=8, max_tokens=1)
    await world.until_acked()

    assert fed == [[1, 2, 3, 1003, 1004, 8, 1006, 1007, 9, 9]]


async def test_a_parent_the_journal_does_not_hold_yet_hands_the_generation_back(world: World, monkeypatch):
    """It comes again, and is sampled when the parent is there."""
    monkeypatch.setattr("seamlessflow_rollout_worker.generations.delivery_handler.LATER_SECONDS", 0.02)
    worker = await world.ready(by_itself=True)
    await world.ask("c2", prompt=(8,), parent="c1", parent_tokens=5, max_tokens=2)
    await asyncio.sleep(0.05)
    assert worker.engine.budgets == []

    await world.ask("c1", prompt=(1, 2, 3), max_tokens=2)
    await world.until_acked()

    assert await world.tokens("c2") == [1006, 1007]


async def test_a_prompt_that_fills_the_context_ends_without_a_token(world: World):
    """The agent learns that it must compact; the engine is not asked."""
    worker = await world.ready(by_itself=True, context=5)

    await world.ask(prompt=(1, 2, 3, 4, 5))
    await world.until_acked()

    assert [end.finish for end in await world.ended()] == [GenerationFinish.CONTEXT]
    assert worker.engine.budgets == []


async def test_what_can_never_be_sampled_is_buried_with_its_reason(world: World):
    """A generation that is its own ancestor has no prompt; the worker goes on with the next one."""
    await world.ready(by_itself=True)

    await world.ask("c1", parent="c1", parent_tokens=1)
    await world.ask("c2")
    await world.until_acked()

    (letter,) = await world.said(DeadLetter)
    assert "c1" in letter.reason and letter.service == "rollout-worker"
    ends = {end.generation: (end.finish, end.num_tokens) for end in await world.ended()}
    assert ends == {"c1": (GenerationFinish.REFUSED, 0), "c2": (GenerationFinish.LENGTH, 8)}


async def test_a_buried_generation_ends_behind_what_was_sampled_before(world: World):
    """So that its call is answered, and no earlier holder can add to it: here its tokens have a gap."""
    await world.open_run()
    same = {"run": RUN, "episode": "t-0-0", "generation": "c1", "shard": 0, "nonce": "n0"}
    await world.publish(GenerationClaimed(**same, worker="old", start=0))
    tokens = {"token_ids": Int32s([1, 2]), "logprobs": Float32s([0.0, 0.0]), "weights_version": 0}
    await world.publish(SegmentSampled(**same, start=0, **tokens))
    await world.publish(SegmentSampled(**same, start=5, **tokens))
    await world.ask("c1")
    await world.publish_model()
    await world.publish_weights(0)
    world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    (end,) = await world.ended()
    assert (end.finish, end.num_tokens) == (GenerationFinish.REFUSED, 4)


async def test_an_unreadable_generation_is_ended_for_its_call(world: World):
    """Its subject says whose it is, and the call's subject which manager waits."""
    await world.ready(by_itself=True)
    (asked,) = [each for each in EXAMPLES if isinstance(each, CallRequested)]
    await world.publish(asked.model_copy(update={"run": RUN, "episode": "t-0-0", "call": "c1", "shard": 3}))
    subject = f"sf.{RUN}.gen.rollout.0.t-0-0.c1"
    await world.bus.publish(Message(subject=subject, payload=b"\xc1 rubbish", message_id="bad"))
    await world.until_said(DeadLetter)

    (end,) = await world.said(GenerationEnded)
    assert (end.generation, end.shard, end.finish) == ("c1", 3, GenerationFinish.REFUSED)
