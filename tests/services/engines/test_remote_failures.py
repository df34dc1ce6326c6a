"""The remote engine with servers that fail, fall silent, die and come back.

| promise | test |
|---|---|
| nothing is lost and nothing wrong is reported when a request fails | test_a_request_that_* |
| a dead server is away until it is healthy and has our weights | test_*_dies_*, test_a_server_that_* |
| only what nobody served counts as patience | test_*_does_not_count_as_patience |
"""

from __future__ import annotations

import asyncio

import pytest
import structlog

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError, Finish
from tests.services.engines.conftest import FIRST_VERSION, sample
from tests.services.engines.remote_world import APIS, Running, World, all_up, until


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", ["cut", "eof", "error", "no_ids", "no_logprobs", "nan", "500", "503", "404"])
async def test_a_request_that_fails_at_one_server_goes_on_at_another(world: World, api: str, fault: str) -> None:
    """Behind the last whole token; what came before is reported once, and the answer is as long as it should be."""
    first, second = await world.serve(api, 2)
    engine = await world.started(api)
    first.faults = second.faults = [fault]  # whoever is asked first has it

    answer = await asyncio.wait_for(sample(engine, max_tokens=20), 5)

    assert (len(answer.ids), answer.finish) == (20, Finish.LENGTH)
    world.assert_exact(answer)


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_just_ends_is_called_that(world: World, api: str) -> None:
    """Nothing went well, and its server ended nothing that it knew of: the cause is looked for in what lies between."""
    (served,) = await world.serve(api)
    engine = await world.started(api)
    (server,) = engine._fleet._servers
    requests, went_well = server._requests, list[bool]()
    tell = requests._on_over

    def hear(well: bool) -> None:
        went_well.append(well)
        tell(well)

    requests._on_over = hear
    served.faults = ["eof"]
    with structlog.testing.capture_logs() as logs:
        answer = await asyncio.wait_for(sample(engine, max_tokens=20), 5)

    (away,) = [line for line in logs if line["event"] == "engine.server_away"]
    assert away["reason"] == "its stream ended before the answer did"
    assert len(answer.ids) == 20 and (went_well[0], went_well[-1]) == (False, True)


async def test_an_end_that_nobody_asked_for_is_called_that(world: World) -> None:
    """Somebody else ends our requests."""
    (served,) = await world.serve()
    engine = await world.started()
    running = Running(engine)
    await running.begun()
    with structlog.testing.capture_logs() as logs:
        await served._end(list(served._running.values()))
        (answer,) = await running.answers()

    assert "it ended a request that nobody asked it to end" in [line.get("reason") for line in logs]
    assert len(answer.ids) == 60


@pytest.mark.parametrize("fault", ["hang", "ping"])
@pytest.mark.parametrize("api", APIS)
async def test_a_request_that_a_server_is_silent_about_goes_on_at_another(world: World, api: str, fault: str) -> None:
    """Silence has a limit, and what keeps a connection alive is no token."""
    first, second = await world.serve(api, 2)
    engine = await world.started(api, silence_seconds=0.3)
    first.faults = second.faults = [fault]

    answer = await asyncio.wait_for(sample(engine), 5)

    assert len(answer.ids) == 12


async def test_a_request_that_no_server_can_serve_is_refused_alone(world: World) -> None:
    """400 is about the request: it ends, and the next one is served by the same server."""
    (served,) = await world.serve()
    engine = await world.started()
    served.faults = ["400"]

    with pytest.raises(BadInput, match="injected"):
        await sample(engine)
    assert len((await sample(engine)).ids) == 12


async def test_a_request_that_fails_everywhere_ends_the_engine_and_not_in_a_hang(world: World) -> None:
    """EngineError: the worker hands back what it holds, and another one may do better."""
    (served,) = await world.serve()
    engine = await world.started(patience_seconds=0.5)
    served.faults = ["500"] * 1000

    with pytest.raises(EngineError, match="HTTP 500"):
        await asyncio.wait_for(sample(engine), 10)


@pytest.mark.parametrize("api", APIS)
async def test_a_server_that_dies_loses_nothing_and_serves_again_when_it_is_back(world: World, api: str) -> None:
    """Its requests go on elsewhere. Back with the weights it was started with, it is given ours before it gets a request."""
    first, second = await world.serve(api, 2)
    engine = await world.started(api)
    running = Running(engine, 8)
    await running.begun()
    await first.die()
    answers = await running.answers()
    for answer in answers:
        assert (len(answer.ids), answer.finish) == (60, Finish.LENGTH)
        world.assert_exact(answer)

    await first.start()
    await until(lambda: all_up(engine))
    assert first.label == second.label
    num_before = first.num_asked
    for answer in await Running(engine, 8).answers():
        world.assert_exact(answer)
    assert first.num_asked == num_before + 4


async def test_while_all_servers_are_dead_requests_wait_and_then_the_engine_gives_up(world: World) -> None:
    """A restart of seconds is sat out; one that does not come is an engine that died."""
    (served,) = await world.serve()
    engine = await world.started(patience_seconds=1.0)
    running = Running(engine)
    await running.begun()
    await served.die()
    await asyncio.sleep(0.2)
    await served.start()
    (answer,) = await running.answers()
    assert len(answer.ids) == 60
    world.assert_exact(answer)

    await served.die()
    with pytest.raises(EngineError, match="no engine server is there"):
        await asyncio.wait_for(sample(engine), 5)
    await served.start()


async def test_a_server_that_was_restarted_unseen_is_not_believed(world: World) -> None:
    """Nothing ran when it came back with its first weights: its name for them gives it away before a token is stamped."""
    (served,) = await world.serve()
    engine = await world.started()
    served.label = "default"  # as after a restart
    await until(lambda: served.label != "default")

    answer = await sample(engine)
    world.assert_exact(answer)


async def test_a_server_that_comes_back_when_its_version_is_gone_waits_for_the_next_one(world: World) -> None:
    """Workers keep two versions: a slow server may find that the one it should load was removed."""
    here, away = await world.serve("vllm", 2)
    engine = await world.started()
    await away.die()
    await sample(engine)
    world.old_file.parent.rename(world.old_file.parent.with_name("removed"))
    await away.start()
    await until(lambda: engine._fleet is not None and "weights" in engine._fleet.why_away())
    assert len((await sample(engine)).ids) == 12
    await engine.pause()
    await engine.load_weights(world.new_file, weights_version=FIRST_VERSION + 1)
    await engine.resume()
    await until(lambda: all_up(engine), seconds=15)

    assert away.label == here.label
    for answer in await Running(engine, 8).answers():
        world.assert_exact(answer)


async def test_a_pause_does_not_count_as_patience(world: World) -> None:
    """A device lent to training is paused for minutes: a server that is away for a moment afterwards is waited for as ever."""
    (served,) = await world.serve()
    engine = await world.started(patience_seconds=1.5)
    running = Running(engine)
    await running.begun()
    await engine.pause()
    await asyncio.sleep(1.6)
    await served.die()
    await engine.resume()
    await asyncio.sleep(0.1)
    await served.start()
    (answer,) = await running.answers()

    assert len(answer.ids) == 60
    world.assert_exact(answer)


async def test_a_wait_for_a_slot_does_not_count_as_patience(world: World) -> None:
    """Nobody failed it yet."""
    (served,) = await world.serve(seconds_per_token=0.03)
    engine = world.engine(patience_seconds=1.5)
    engine._num_slots = 1
    await engine.start(world.old_file.parent, weights_version=FIRST_VERSION)
    first = Running(engine)
    await first.begun()
    waiting = asyncio.create_task(sample(engine))
    await first.answers()
    await served.die()
    await asyncio.sleep(0.1)
    await served.start()

    assert len((await asyncio.wait_for(waiting, 10)).ids) == 12


async def test_a_mistake_of_ours_does_not_leave_a_server_unwatched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be away for good, and nobody would know."""
    await world.serve()
    engine = await world.started()
    (server,) = engine._fleet._servers
    look, mistakes = server.look, [RuntimeError("a mistake")]

    async def looks() -> None:
        if mistakes:
            raise mistakes.pop()
        await look()

    monkeypatch.setattr(server, "look", looks)
    with structlog.testing.capture_logs() as logs:
        await until(lambda: not mistakes)
        await until(lambda: all_up(engine))

    assert "engine.watch_failed" in [each["event"] for each in logs]
    assert len((await sample(engine)).ids) == 12
