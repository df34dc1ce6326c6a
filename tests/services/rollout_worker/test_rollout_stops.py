"""Stop texts from queue to acknowledgement: the token that completes one is the last that is said, whoever samples it.

The token at position p says "p." here, but the one at position 7 is special: it says nothing.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models

from seamlessflow.contracts import DeadLetter, Float32s, GenerationClaimed, GenerationFinish, Int32s, SegmentSampled
from seamlessflow_rollout_worker.generations.generation_state import Pace
from tests.services.rollout_worker.rollout_world import RUN, STOP_ID, World


def tokenizer_json() -> bytes:
    made = Tokenizer(models.WordLevel({"<special>" if p == 7 else f"{p}.": 1000 + p for p in range(60)}, unk_token="0."))
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken("<special>", special=True)])
    return made.to_str().encode()


async def ends(world: World) -> list[tuple[GenerationFinish, int]]:
    return [(end.finish, end.num_tokens) for end in await world.ended()]


async def test_nothing_behind_a_stop_text_is_said(world: World):
    """The engine had sampled more at once; its request is ended and the slot free."""
    worker = await world.ready(tokenizer=tokenizer_json())
    await world.ask(max_tokens=20, stop=("nothing like it", "5.6"))
    await world.until(lambda: worker.engine.requests)

    worker.engine.step(12)
    await world.until_acked()

    assert await world.tokens() == [1003, 1004, 1005, 1006]
    assert await ends(world) == [(GenerationFinish.STOP, 4)] and not worker.engine.requests


async def test_a_stop_text_may_come_token_by_token(world: World):
    """Over three chunks and segments, with a special token in the middle that is no text; the budget ends with it too."""
    world.pace = Pace(longest_seconds=0.0)
    worker = await world.ready(tokenizer=tokenizer_json())
    await world.ask(max_tokens=6, stop=("6.8",))
    await world.until(lambda: worker.engine.requests)

    for count in range(1, 7):
        worker.engine.step()
        await world.until_tokens(count)
    await world.until_acked()

    assert len(await world.said(SegmentSampled)) == 6
    assert await ends(world) == [(GenerationFinish.STOP, 6)]


async def test_a_stop_text_may_be_said_by_two_workers(world: World):
    """The second one knows how the first one's tokens end, and samples under other weights."""
    world.pace = Pace(longest_seconds=0.0)
    await world.open_run(ack_wait_seconds=0.3)
    await world.publish_model(tokenizer=tokenizer_json())
    await world.publish_weights(0)
    first = world.worker("n1")
    await world.lease(node="n1")
    await world.ask(max_tokens=20, stop=(".5.6.",))
    await world.until(lambda: first.engine.requests)
    first.engine.step(3)
    await world.until_tokens(3)

    await first.kill()
    await world.publish_weights(1)
    world.worker("n2", by_itself=True)
    await world.lease(node="n2")
    await world.until_acked()

    segments = [(list(each.token_ids), each.weights_version) for each in await world.said(SegmentSampled)]
    assert segments == [([1003, 1004, 1005], 0), ([1006], 1)]
    assert await ends(world) == [(GenerationFinish.STOP, 4)]


async def test_a_generation_that_had_said_its_stop_text_only_gets_its_end(world: World):
    """Its worker died before it could say so."""
    await world.open_run()
    await world.publish_model(tokenizer=tokenizer_json())
    await world.publish_weights(0)
    await world.ask(stop=("4.5",))
    same = {"run": RUN, "episode": "t-0-0", "generation": "c1", "shard": 0, "nonce": "old"}
    await world.publish(GenerationClaimed(**same, worker="gone", start=0))
    for start, ids in ((0, [1003, 1004]), (2, [1005])):
        tokens = {"token_ids": Int32s(ids), "logprobs": Float32s([-1.0] * len(ids)), "weights_version": 0}
        await world.publish(SegmentSampled(**same, start=start, **tokens))

    world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    assert await ends(world) == [(GenerationFinish.STOP, 3)] and await world.tokens() == [1003, 1004, 1005]


async def test_the_next_turn_goes_on_behind_the_stop_text(world: World):
    """What was sampled and not said is no part of its prompt."""
    worker = await world.ready(tokenizer=tokenizer_json(), by_itself=True)
    fed: list[list[int]] = []
    generate = worker.engine.generate
    worker.engine.generate = lambda request_id, ids, params: fed.append(ids) or generate(request_id, ids, params)
    await world.ask("c1", stop=("4.",))
    await world.until_acked()

    await world.ask("c2", parent="c1", parent_tokens=5, prompt=(9,), max_tokens=1)
    await world.until_acked()

    assert fed == [[1, 2, 3], [1, 2, 3, 1003, 1004, 9]]


async def test_a_stop_token_before_the_stop_text_ends_it_as_before(world: World):
    """And text in the prompt stops nothing: only what is sampled counts."""
    await world.ready(tokenizer=tokenizer_json(), by_itself=True, stops_at=6)

    await world.ask(prompt=(1, 1009, 1010), stop=("9.", "10.", "6."))
    await world.until_acked()

    assert await world.tokens() == [1003, 1004, 1005, STOP_ID]
    assert await ends(world) == [(GenerationFinish.STOP, 4)]


async def test_a_model_without_a_tokenizer_serves_all_but_stop_texts(world: World):
    """Those are refused with the reason, as nobody could ever say where they end; empty texts stop nothing."""
    await world.ready(by_itself=True)

    await world.ask("c1", stop=("6.",))
    await world.ask("c2", stop=("",))
    await world.until_acked()

    (letter,) = await world.said(DeadLetter)
    assert "tokenizer.json" in letter.reason
    finishes = {end.generation: end.finish for end in await world.ended()}
    assert finishes == {"c1": GenerationFinish.REFUSED, "c2": GenerationFinish.LENGTH}


async def test_the_tokenizer_is_loaded_once_and_only_for_stop_texts(world: World, monkeypatch):
    """Also when the folder that the engine started from is long gone."""
    from seamlessflow_rollout_worker.weights.local_versions import LocalVersions

    loads: list[str] = []
    load = LocalVersions.load_tokenizer
    monkeypatch.setattr(LocalVersions, "load_tokenizer", lambda self: loads.append("load") or load(self))
    worker = await world.ready(tokenizer=tokenizer_json(), by_itself=True)
    for version in (1, 2, 3):
        await world.publish_weights(version)
        await world.until(lambda version=version: worker.engine.weights_version == version)
    await world.ask("c0")
    await world.until_acked()
    assert loads == []

    for number in range(1, 5):
        await world.ask(f"c{number}", episode=f"t-{number}-0", stop=("6.",))
    await world.until_acked()

    assert loads == ["load"]
    assert [len(await world.tokens(f"c{number}")) for number in range(5)] == [8, 4, 4, 4, 4]
