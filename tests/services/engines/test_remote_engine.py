"""The remote engine and requests: where they go, how they end, and that every answer is whole whatever servers do meanwhile.

What every engine promises is in test_engine_promises; here and in test_remote_failures, test_remote_updates and
test_remote_start is what only servers can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from seamlessflow.errors import BadInput, Unavailable
from seamlessflow_rollout_worker.engines.base import Finish
from tests.services.engines.conftest import FIRST_VERSION, PROMPT, VOCAB_SIZE, Answer, joined, sample
from tests.services.engines.remote_world import APIS, Running, World, expected, until


@pytest.mark.parametrize("api", APIS)
async def test_an_interrupt_lets_the_server_end_the_request(world: World, api: str) -> None:
    """By its own order: the slot there is free, and what it sampled is reported."""
    (served,) = await world.serve(api)
    engine = await world.started(api)
    running = Running(engine)
    await running.begun()
    await engine.interrupt("r0")
    (answer,) = await running.answers()

    assert answer.finish is Finish.INTERRUPTED
    assert 0 < len(answer.ids) < 60
    assert any("abort" in order for order in served.orders)
    await until(lambda: not served._running)


@pytest.mark.parametrize("order", ["/abort_requests", "/pause"])
async def test_a_server_that_hangs_in_an_order_holds_nobody_up_for_long(world: World, order: str) -> None:
    """Its connections are closed instead; what it had sent is kept."""
    (served,) = await world.serve()
    engine = await world.started(control_seconds=0.5, cut_seconds=0.05)
    running = Running(engine, max_tokens=110)
    await running.begun()
    served.hangs_at = order
    async with asyncio.timeout(3):
        await (engine.pause() if order == "/pause" else engine.interrupt("r0"))
    num = len(joined(running.chunks[0]).ids)
    await asyncio.sleep(0.1)
    assert len(joined(running.chunks[0]).ids) == num
    served.hangs_at = ""
    if order == "/pause":
        await engine.resume()
    (answer,) = await running.answers()

    assert answer.finish is (Finish.LENGTH if order == "/pause" else Finish.INTERRUPTED)
    world.assert_exact(answer)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_every_answer_is_whole_and_every_token_stamped_exactly(
    world: World, api: str, seed: int
) -> None:
    """Servers die, come back, fail, are updated and fail to be, while requests come, run and are interrupted, in any order."""
    chance = random.Random(f"{api}{seed}")
    servers = await world.serve(api, 3)
    engine = await world.started(api, patience_seconds=20.0)
    dead: set[int] = set()
    files = [world.old_file, world.new_file]
    asked: dict[str, asyncio.Task[Answer]] = {}
    for step in range(25):
        for _ in range(chance.randrange(3)):
            name = f"r{len(asked)}"
            asked[name] = asyncio.create_task(sample(engine, request_id=name, seed=step, max_tokens=40))
        place = chance.randrange(3)
        match chance.choice(["die", "start", "fault", "update", "bad update", "interrupt", "freeze", "wait", "wait"]):
            case "die" if place not in dead and len(dead) < 2:
                dead.add(place)
                await servers[place].die()
            case "start" if place in dead:
                dead.discard(place)
                await servers[place].start()
            case "fault":
                servers[place].faults = [chance.choice(["cut", "eof", "error", "no_ids", "nan", "500"])]
            case "update" | "bad update" as kind:
                for served in servers:
                    served.load_fails = kind == "bad update" and chance.random() < 0.5
                await engine.pause()
                version = engine.weights_version + 1
                with contextlib.suppress(BadInput, Unavailable):
                    await engine.load_weights(files[(version - FIRST_VERSION) % 2], weights_version=version)
                await engine.resume()
                for served in servers:
                    served.load_fails = False
            case "interrupt" if asked:
                await engine.interrupt(chance.choice(list(asked)))
            case "freeze":
                await engine.sleep()
                await asyncio.sleep(0.03)
                await engine.wake()
        await asyncio.sleep(chance.random() * 0.05)
    for place in dead:
        await servers[place].start()
    async with asyncio.timeout(40):
        answers = await asyncio.gather(*asked.values())

    for answer in answers:
        assert answer.finish is Finish.INTERRUPTED or len(answer.ids) == 40
        assert answer.versions == sorted(answer.versions)
        tables = [expected(logits, PROMPT, answer.ids) for logits in (world.old, world.new)]
        told = [tables[(version - FIRST_VERSION) % 2][place] for place, version in enumerate(answer.versions)]
        assert answer.logprobs == pytest.approx(told, abs=1e-9)


async def test_requests_go_to_the_least_loaded_server_and_turns_to_the_one_that_had_them(world: World) -> None:
    """Eight at once are four and four; what begins with the answer of one follows it."""
    servers = await world.serve("vllm", 2)
    engine = await world.started()
    asked = [served.num_asked for served in servers]
    await Running(engine, 8).answers()
    assert [served.num_asked - before for served, before in zip(servers, asked, strict=True)] == [4, 4]

    prompt = [7] * 40
    first = await sample(engine, prompt, max_tokens=40)
    holder = max(servers, key=lambda served: served.asked[-1]["token_ids"][:40] == prompt)
    num_before = holder.num_asked
    for turn in range(3):
        await sample(engine, prompt + first.ids + [turn], max_tokens=2)
    assert holder.num_asked == num_before + 3


async def test_a_fixed_model_is_paused_without_any_order_for_it(world: World) -> None:
    """Its connections are closed instead, and requests go on behind what came."""
    await world.serve("completions", is_dev=False)
    engine = await world.started("completions", fixed_model=True)
    running = Running(engine, 3)
    await running.begun()
    await engine.pause()
    num = [len(joined(chunks).ids) for chunks in running.chunks]
    await asyncio.sleep(0.1)
    assert [len(joined(chunks).ids) for chunks in running.chunks] == num
    await engine.resume()

    assert [len(answer.ids) for answer in await running.answers()] == [60] * 3


async def test_a_stop_token_that_the_model_does_not_have_is_not_sent(world: World) -> None:
    """vLLM refuses a request that has one; it can stop nothing."""
    (served,) = await world.serve()
    engine = await world.started()
    answer = await sample(engine, stop_token_ids=(VOCAB_SIZE, -1))

    assert (len(answer.ids), answer.finish) == (12, Finish.LENGTH)
    assert served.asked[-1]["sampling_params"]["stop_token_ids"] == []
