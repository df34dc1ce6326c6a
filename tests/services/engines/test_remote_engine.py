"""The remote engine with servers that fail, come back, lack abilities, or have other weights than they should.

What every engine promises is in test_engine_promises; here is what only servers can do.

| promise | test |
|---|---|
| nothing is lost and nothing wrong is reported when a request fails | test_a_request_that_* |
| a dead server is away until it is healthy and has our weights | test_*_dies_*, test_a_server_that_was_restarted_* |
| an update that fails somewhere leaves nobody at a wrong version | test_*_update_* |
| what a server cannot do is said at the start | test_*_refused_*, test_what_servers_can_do_* |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import structlog
from safetensors.numpy import save_file

from seamlessflow.errors import BadInput, Unavailable
from services.rollout_worker.engines.base import Chunk, EngineError, Finish
from services.rollout_worker.engines.remote_engine import RemoteEngine
from services.rollout_worker.engines.remote_options import RemoteOptions
from services.rollout_worker.engines.toy_policy import ToyPolicy
from tests.services.engines.conftest import CONTEXT, FIRST_VERSION, PROMPT, VOCAB_SIZE, Answer, joined, params, sample
from tests.services.engines.served import KEY, Served

APIS = ["vllm", "completions", "sglang"]
PACE = 0.003
Logits = list[list[float]]


def logits_of(seed: int) -> Logits:
    policy = ToyPolicy(VOCAB_SIZE, seed)
    return [policy.logprobs_after(row, 1.0) for row in range(VOCAB_SIZE)]


def version_in(folder: Path, logits: Logits) -> Path:
    """A folder an engine can start from, or be updated from."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
    save_file({"logits": np.asarray(logits)}, folder / "model.safetensors")
    return folder / "model.safetensors"


def expected(logits: Logits, prompt: list[int], ids: list[int]) -> list[float]:
    """Logprobs at temperature 1 by the table itself."""
    policy = ToyPolicy(VOCAB_SIZE, 0)
    policy.overwrite(logits)
    text = [*prompt, *ids]
    return [policy.logprobs_after(text[place - 1], 1.0)[text[place]] for place in range(len(prompt), len(text))]


class World:
    """Some servers, one engine on them, and the weights of versions FIRST_VERSION and the one after."""

    def __init__(self, folder: Path) -> None:
        self.served: list[Served] = []
        self.engines: list[RemoteEngine] = []
        self.old, self.new = logits_of(1), logits_of(2)
        self.old_file = version_in(folder / "old", self.old)
        self.new_file = version_in(folder / "new", self.new)

    async def serve(self, api: str = "vllm", num: int = 1, **how: object) -> list[Served]:
        made = [
            Served(api, **{"vocab_size": VOCAB_SIZE, "max_context_tokens": CONTEXT, "seconds_per_token": PACE, **how})  # type: ignore[arg-type]
            for _ in range(num)
        ]
        for each in made:
            await each.start()
        self.served += made
        return made

    def engine(
        self, api: str = "vllm", *, urls: list[str] | None = None, key: str | None = None, **options: object
    ) -> RemoteEngine:
        fast = {
            "health_seconds": 0.05,
            "start_seconds": 2.0,
            "patience_seconds": 3.0,
            "cut_seconds": 1.0,
            "control_seconds": 5.0,
        }
        made = RemoteEngine(
            [each.url for each in self.served] if urls is None else urls,
            RemoteOptions.of({**fast, "api": api, **options}),
            temperature=1.0,
            top_p=1.0,
            api_key=key,
            num_slots=32,
            max_context_tokens=CONTEXT,
        )
        self.engines.append(made)
        return made

    async def started(self, api: str = "vllm", **options: object) -> RemoteEngine:
        engine = self.engine(api, **options)  # type: ignore[arg-type]
        await engine.start(self.old_file.parent, weights_version=FIRST_VERSION)
        return engine

    def assert_exact(self, answer: Answer, prompt: list[int] = PROMPT) -> None:
        """Every token's logprob is that of the version it is stamped with."""
        for version, logits in ((FIRST_VERSION, self.old), (FIRST_VERSION + 1, self.new)):
            told = expected(logits, prompt, answer.ids)
            for place, stamped in enumerate(answer.versions):
                if stamped == version:
                    assert answer.logprobs[place] == pytest.approx(told[place], abs=1e-9), (place, stamped)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for engine in made.engines:
        await engine.stop()
    for served in made.served:
        await served.die()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def all_up(engine: RemoteEngine) -> bool:
    """Whether every server of its takes requests."""
    assert engine._fleet is not None
    return not engine._fleet.why_away()


class Running:
    """Requests being read in the background."""

    def __init__(self, engine: RemoteEngine, num: int = 1, **changes: object) -> None:
        self.chunks: list[list[Chunk]] = [[] for _ in range(num)]
        self.tasks = [asyncio.create_task(self._read(engine, place, changes)) for place in range(num)]

    async def _read(self, engine: RemoteEngine, place: int, changes: dict[str, object]) -> None:
        settings = {"max_tokens": 60, "seed": place, **changes}
        async for chunk in engine.generate(f"r{place}", PROMPT, params(**settings)):
            self.chunks[place].append(chunk)

    async def begun(self) -> None:
        await until(lambda: all(self.chunks))

    async def answers(self) -> list[Answer]:
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks)
        return [joined(chunks) for chunks in self.chunks]


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


async def test_a_stop_token_that_the_model_does_not_have_is_not_sent(world: World) -> None:
    """vLLM refuses a request that has one; it can stop nothing."""
    (served,) = await world.serve()
    engine = await world.started()
    answer = await sample(engine, stop_token_ids=(VOCAB_SIZE, -1))

    assert (len(answer.ids), answer.finish) == (12, Finish.LENGTH)
    assert served.asked[-1]["sampling_params"]["stop_token_ids"] == []


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


@pytest.mark.parametrize("told", ["much", [], {"a": 1}, 1e400])
async def test_a_model_list_that_makes_no_sense_says_nothing(world: World, told: object) -> None:
    """A context that is no number is one that is not told."""
    (served,) = await world.serve()
    served.max_context_tokens = told  # type: ignore[assignment]
    engine = await world.started()

    assert engine.max_context_tokens == CONTEXT
