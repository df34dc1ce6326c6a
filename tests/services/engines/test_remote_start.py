"""The remote engine at its start: what a server cannot do is said then, and what no run can be sampled with is refused."""

from __future__ import annotations

import pytest
import structlog

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError
from tests.services.engines.conftest import CONTEXT, FIRST_VERSION, PROMPT, sample
from tests.services.engines.remote_world import APIS, Running, World, all_up, until
from tests.services.engines.served import KEY


async def test_a_run_is_refused_at_the_start_where_a_server_cannot_load_weights(world: World) -> None:
    """Nothing was sampled, and the message says what to start it with. A fixed model is served where that is said."""
    (served,) = await world.serve("completions", is_dev=False)
    with pytest.raises(BadInput, match="VLLM_SERVER_DEV_MODE"):
        await world.started("completions")
    engine = await world.started("completions", fixed_model=True)

    assert len((await sample(engine)).ids) == 12
    assert "cache_salt" not in served.asked[-1]
    with pytest.raises(BadInput, match="fixed_model"):
        await engine.stage_weights(world.new_file)
    await engine.pause()
    with pytest.raises(BadInput, match="fixed_model"):
        await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    await engine.resume()
    assert set((await sample(engine)).versions) == {FIRST_VERSION}


@pytest.mark.parametrize("api", APIS)
async def test_a_run_is_refused_at_the_start_where_no_logprobs_come(world: World, api: str) -> None:
    """There is nothing to train on."""
    (served,) = await world.serve(api)
    served.faults = ["no_logprobs"] * 9

    with pytest.raises(BadInput, match="logprob"):
        await world.started(api)


async def test_a_run_is_refused_at_the_start_where_logprobs_are_of_another_meaning(world: World) -> None:
    """The message says of which; at temperature 1 those before temperature are right, and the run is served."""
    await world.serve(meaning="RAW")
    engine = world.engine()
    engine._needs = type(engine._needs)(0.7, 1.0, fixed_model=False)
    with pytest.raises(BadInput, match="before temperature"):
        await engine.start(world.old_file.parent, weights_version=FIRST_VERSION)
    served = await world.started()

    world.assert_exact(await sample(served))
    with pytest.raises(BadInput, match="another meaning"):
        await sample(served, temperature=0.5)


async def test_what_servers_can_do_is_said_once_at_the_start(world: World) -> None:
    """One event, a line for each server: how it pauses, aborts, loads, and what its logprobs are."""
    await world.serve("sglang", 2)
    with structlog.testing.capture_logs() as logs:
        await world.started("sglang")

    (said,) = [line for line in logs if line["event"] == "engine.servers"]
    assert [each["server"] for each in said["servers"]] == [served.url for served in world.served]
    assert {each["logprobs"] for each in said["servers"]} == {"after temperature, before top-p"}
    assert {each["weights"] for each in said["servers"]} == {"loaded from a folder"}


async def test_no_server_at_the_start_is_an_error_that_names_them(world: World) -> None:
    """After a while in which one might have come."""
    engine = world.engine(urls=["http://127.0.0.1:9"], start_seconds=0.2)

    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        await engine.start(world.old_file.parent, weights_version=FIRST_VERSION)


async def test_streams_that_just_end_when_it_is_tried_out_are_called_that(world: World) -> None:
    """A proxy that cuts them is no server that ends requests."""
    (served,) = await world.serve()
    served.faults = ["eof"] * 1000

    with pytest.raises(EngineError, match="its stream ended before the answer did"):
        await world.started(start_seconds=0.5)


async def test_a_server_that_comes_late_joins_with_the_weights_of_the_others(world: World) -> None:
    """The engine begins with the one that is there."""
    here, late = await world.serve("sglang", 2)
    await late.die()
    engine = await world.started("sglang")
    await late.start()
    await until(lambda: late.label == here.label)
    await until(lambda: all_up(engine))

    for answer in await Running(engine, 8).answers():
        world.assert_exact(answer)


@pytest.mark.parametrize(("theirs", "ours"), [(CONTEXT, 64), (64, CONTEXT)])
async def test_the_context_is_the_shorter_one_of_run_and_server(world: World, theirs: int, ours: int) -> None:
    """What a server has more than the run asks for is not used; what it has less ends requests earlier."""
    await world.serve(max_context_tokens=theirs)
    engine = world.engine()
    engine._most_context_tokens = ours
    await engine.start(world.old_file.parent, weights_version=FIRST_VERSION)

    assert engine.max_context_tokens == 64
    assert len((await sample(engine, max_tokens=1000)).ids) == 64 - len(PROMPT)


async def test_a_key_is_sent_and_never_said(world: World) -> None:
    """Without it the server refuses; with it, no log line and no message holds it."""
    await world.serve(needs_key=True)
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(BadInput, match="SEAMLESSFLOW_ENGINE_API_KEY"):
            await world.started()
        engine = world.engine(key=KEY)
        await engine.start(world.old_file.parent, weights_version=FIRST_VERSION)
        assert len((await sample(engine)).ids) == 12

    assert KEY not in str(logs)


@pytest.mark.parametrize("told", ["much", [], {"a": 1}, 1e400])
async def test_a_model_list_that_makes_no_sense_says_nothing(world: World, told: object) -> None:
    """A context that is no number is one that is not told."""
    (served,) = await world.serve()
    served.max_context_tokens = told  # type: ignore[assignment]
    engine = await world.started()

    assert engine.max_context_tokens == CONTEXT
