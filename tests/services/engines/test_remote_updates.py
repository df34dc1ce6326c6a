"""The remote engine and new weights: every token is stamped exactly, and a failing update leaves nobody at a wrong version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from seamlessflow.errors import BadInput
from tests.services.engines.conftest import FIRST_VERSION, VOCAB_SIZE, joined, sample
from tests.services.engines.remote_world import APIS, PACE, Running, World, all_up, until
from tests.services.engines.served import Served


@pytest.mark.parametrize("api", APIS)
async def test_updates_in_the_middle_of_requests_stamp_every_token_exactly(world: World, api: str) -> None:
    """Old ones with old logprobs, new ones with new ones, on all servers, and none lost."""
    servers = await world.serve(api, 2)
    engine = await world.started(api)
    running = Running(engine, 8)
    await running.begun()
    await engine.pause()
    num_before = [len(joined(chunks).ids) for chunks in running.chunks]
    await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    await engine.resume()
    answers = await running.answers()

    assert all(served.label.endswith(f"-{FIRST_VERSION + 1}") for served in servers)
    for answer, before in zip(answers, num_before, strict=True):
        assert answer.versions == [FIRST_VERSION] * before + [FIRST_VERSION + 1] * (60 - before)
        world.assert_exact(answer)


@pytest.mark.parametrize("api", APIS)
async def test_a_pause_before_the_first_token_is_no_fault_of_the_server(world: World, api: str) -> None:
    """Whether it says that it ended the request, or just ends the stream."""
    (served,) = await world.serve(api)
    engine = await world.started(api)
    num_before = served.num_asked
    served.sample_at(seconds_per_token=5.0)
    running = Running(engine, 4, max_tokens=3)
    await until(lambda: served.num_asked == num_before + 4)
    await engine.pause()
    assert all_up(engine)
    served.sample_at(seconds_per_token=PACE)
    await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    await engine.resume()

    for answer in await running.answers():
        assert answer.versions == [FIRST_VERSION + 1] * 3
        world.assert_exact(answer)


async def test_a_pause_right_behind_a_resume_lets_nothing_slip_through(world: World) -> None:
    """Who waited was woken, and finds it closed again: a request sent then would live through the update."""
    (served,) = await world.serve()
    engine = await world.started()
    await engine.pause()
    running = Running(engine, 4)
    await asyncio.sleep(0.05)
    num_before = served.num_asked
    await engine.resume()
    await engine.pause()
    await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    assert served.num_asked == num_before
    await engine.resume()

    for answer in await running.answers():
        assert answer.versions == [FIRST_VERSION + 1] * 60
        world.assert_exact(answer)


async def test_an_update_that_one_server_fails_leaves_it_out_until_it_has_the_new_weights(world: World) -> None:
    """The other one goes on alone; nothing is sampled by weights nobody knows."""
    _, bad = await world.serve("vllm", 2)
    engine = await world.started()
    bad.load_fails = True
    await engine.pause()
    await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    await engine.resume()
    num_before = bad.num_asked
    for answer in await Running(engine, 8).answers():
        assert set(answer.versions) == {FIRST_VERSION + 1}
        world.assert_exact(answer)

    def requests_at(served: Served) -> list[dict[str, object]]:
        return [body for body in served.asked[num_before:] if not str(body["request_id"]).startswith("try-")]

    assert requests_at(bad) == []
    bad.load_fails = False
    await until(lambda: bad.label.endswith(f"-{FIRST_VERSION + 1}"))
    await until(lambda: all_up(engine))
    for answer in await Running(engine, 8).answers():
        world.assert_exact(answer)
    assert requests_at(bad)


async def test_an_update_that_all_servers_fail_is_refused_and_the_old_weights_go_on(world: World) -> None:
    """They are loaded again first: a server that failed may have half of each."""
    (served,) = await world.serve()
    engine = await world.started()
    running = Running(engine)
    await running.begun()
    served.load_fails = True
    await engine.pause()
    with pytest.raises(BadInput, match="out of memory"):
        await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    served.load_fails = False
    await engine.resume()
    (answer,) = await running.answers()

    assert answer.versions == [FIRST_VERSION] * 60
    assert engine.weights_version == FIRST_VERSION
    world.assert_exact(answer)


async def test_an_update_of_other_tensors_is_refused_before_a_server_hears_of_it(world: World, tmp_path: Path) -> None:
    """Servers load what fits, and say no more than a line in their log about the rest."""
    (served,) = await world.serve()
    engine = await world.started()
    save_file({"logits": np.zeros((VOCAB_SIZE, 3))}, tmp_path / "short.safetensors")
    save_file({"other": np.zeros((VOCAB_SIZE, VOCAB_SIZE))}, tmp_path / "other.safetensors")
    before = list(served.orders)

    for bad in ("short", "other", "missing"):
        with pytest.raises(BadInput, match=r"[Nn]othing was loaded"):
            await engine.stage_weights(tmp_path / f"{bad}.safetensors")
    assert served.orders == before


async def test_an_order_cut_short_leaves_no_server_with_weights_nobody_knows(world: World) -> None:
    """Loading took longer than the worker waits: the server is loaded anew before it gets a request."""
    (served,) = await world.serve()
    engine = await world.started()
    await engine.pause()
    loading: Awaitable[None] = engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    task = asyncio.ensure_future(loading)
    await until(lambda: served.orders[-1] in ("/collective_rpc", "/update_weight_version"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await engine.resume()
    answer = await asyncio.wait_for(sample(engine, max_tokens=20), 5)

    world.assert_exact(answer)
    assert set(answer.versions) == {engine.weights_version}
