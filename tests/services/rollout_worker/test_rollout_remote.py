"""The service on servers that already run: what it claims, says and hands back, while they are updated, die and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import GenerationRequested, Int32s, RunStopRequested, Sampling, SegmentSampled, Service
from seamlessflow.contracts.streams import CONTROL_STREAM, control_streams
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import ConfigError
from seamlessflow.runtime import make_context
from seamlessflow.weights import model_path, publish_folder, weights_path
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.engines.factory import build_engine
from seamlessflow_rollout_worker.engines.scripted_engine import ToyPolicy
from seamlessflow_rollout_worker.service import RolloutWorker
from tests.services.engines.served import Served
from tests.services.rollout_worker.rollout_world import NODE, RUN, World

VOCAB_SIZE = 64
PROMPT = (5, 6, 7)
FAST = {"health_seconds": 0.05, "patience_seconds": 10.0, "control_seconds": 5.0}


@pytest.fixture
async def served() -> AsyncIterator[list[Served]]:
    made = [Served("vllm", vocab_size=VOCAB_SIZE, max_context_tokens=256, seconds_per_token=0.005) for _ in range(2)]
    for each in made:
        await each.start()
    yield made
    for each in made:
        await each.die()


async def publish(world: World, version: int) -> None:
    """Logits that are the version's own."""
    if version == 0:
        document = f'{{"vocab_size": {VOCAB_SIZE}}}'.encode()
        publish_folder(world.store, model_path(RUN), {"config.json": document, "tokenizer.json": b"{}"}, {})
    files = {"model.safetensors": save({"logits": np.asarray(logits_of(version))})}
    publish_folder(world.store, weights_path(RUN, version), files, {})
    await world.move_head(version)


def logits_of(version: int) -> list[list[float]]:
    policy = ToyPolicy(VOCAB_SIZE, 100 + version)
    return [policy.logprobs_after(row, 1.0) for row in range(VOCAB_SIZE)]


def generation(name: str) -> GenerationRequested:
    """80 tokens that nothing stops."""
    return GenerationRequested(
        run=RUN,
        generation=name,
        episode=f"{name}-0-0",
        suffix=Int32s(PROMPT),
        sampling=Sampling(max_tokens=80),
        stop_token_ids=(),
        seed=7,
        tag="rollout",
        bucket=0,
        shard=0,
    )


def start(world: World, served: list[Served]) -> tuple[RolloutWorker, asyncio.Task[None]]:
    settings = WorkerSettings(
        node=NODE,
        instance="i1",
        work_dir=world.folder / "work",
        store_url=world.store.url,
        engine_urls=tuple(each.url for each in served),
    )
    context = make_context(Service.ROLLOUT_WORKER, settings, MemoryBus(world.server), capabilities=("rollout",))
    worker = RolloutWorker(context, settings)
    return worker, asyncio.create_task(worker.run())


async def stop_worker(worker: RolloutWorker, task: asyncio.Task[None]) -> None:
    worker._context.stopping.set()
    await task


async def test_generations_run_through_updates_and_a_servers_death_with_exact_versions(
    world: World, served: list[Served]
) -> None:
    """Eight long ones: an update comes in the middle, then one of two servers dies. Each logprob is that of its version."""
    await world.open_run(model={"engine": "remote", "engine_options": FAST}, fleet={"slots": 8})
    await publish(world, 0)
    worker, task = start(world, served)
    await world.lease()
    for number in range(8):
        await world.publish(generation(f"c{number}"))
    await world.until_tokens(4, "c0")
    await publish(world, 1)
    await world.until(lambda: worker._tenure.engine.weights_version == 1, seconds=20.0)
    await served[0].die()
    await world.until_ended(8, seconds=30.0)
    await world.until_acked()
    await served[0].start()
    await world.until(lambda: served[0].label == served[1].label, seconds=20.0)
    await stop_worker(worker, task)

    versions: set[int] = set()
    for number in range(8):
        ids = [*PROMPT, *await world.tokens(f"c{number}")]
        assert len(ids) == len(PROMPT) + 80
        for segment in (each for each in await world.said(SegmentSampled) if each.generation == f"c{number}"):
            logits = logits_of(segment.weights_version)
            policy = ToyPolicy(VOCAB_SIZE, 0)
            policy.overwrite(logits)
            place = len(PROMPT) + segment.start
            told = [policy.logprobs_after(ids[i - 1], 1.0)[ids[i]] for i in range(place, place + len(segment.token_ids))]
            assert list(segment.logprobs) == pytest.approx(told, abs=1e-5)
            versions.add(segment.weights_version)
    assert versions == {0, 1}


async def test_a_run_that_the_servers_cannot_serve_is_ended_with_the_reason(world: World, served: list[Served]) -> None:
    """One that cannot load weights would let it train without seeing what it learned."""
    for stream in control_streams():
        await world.bus.ensure_stream(stream)
    fixed = Served("vllm", vocab_size=VOCAB_SIZE, is_dev=False)
    await fixed.start()
    await world.open_run(model={"engine": "remote", "engine_options": FAST})
    await publish(world, 0)
    worker, task = start(world, [fixed])
    await world.lease()

    async def reason() -> str:
        record = await world.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=RUN))
        event = None if record is None else await worker._context.journal.open(record)
        return event.reason if isinstance(event, RunStopRequested) else ""

    async def said() -> bool:
        return "cannot load weights" in await reason()

    await world.until(said, seconds=10.0)
    await stop_worker(worker, task)
    await fixed.die()


@pytest.mark.parametrize(
    ("options", "urls", "why"),
    [
        ({"api": "tgi"}, ("http://s",), "api"),
        ({"apy": "vllm"}, ("http://s",), "apy"),
        ({"health_seconds": 0}, ("http://s",), "health_seconds"),
        ({}, (), "SEAMLESSFLOW_ENGINE_URLS"),
        ({"fixed_model": True}, ("http://s",), r"evaluation\.after"),
    ],
)
async def test_options_that_cannot_be_used_are_named(
    options: dict[str, object], urls: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    """Before any server is asked."""
    from seamlessflow.config.run import RunConfig

    document = {
        "model": {"name": "tiny", "engine": "remote", "engine_options": options},
        "agents": [{"env": "e", "entrypoint": "a:b"}],
        "algorithm": {"steps": 1},
    }
    with pytest.raises(ConfigError, match=why):
        build_engine(RunConfig.model_validate(document), WorkerSettings(engine_urls=urls), tmp_path)


def test_settings_name_servers_and_hide_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commas between them, each once; what is no URL is refused without showing a password."""
    monkeypatch.setenv("SEAMLESSFLOW_ENGINE_URLS", "http://a:1/, https://b:2,http://a:1")
    monkeypatch.setenv("SEAMLESSFLOW_ENGINE_API_KEY", "sesame")
    monkeypatch.setenv("SEAMLESSFLOW_TAGS", "h800,prefill")
    settings = WorkerSettings()

    assert settings.engine_urls == ("http://a:1", "https://b:2")
    assert settings.tags == ("h800", "prefill")
    assert "sesame" not in repr(settings)


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        ("ftp://me:sesame@a", "ftp://a must begin with http"),
        ("http://me:sesame@", "http://host:port"),
        ("http://me:sesame@a:99999", "cannot be used"),
        ("http://[::me:sesame", "cannot be used"),
        ("http://me:sesame@a/?key=1", "perhaps with a path"),
        ("http://me:sesame@a", "a request can carry one of both"),
    ],
)
def test_servers_that_cannot_be_asked_are_refused_without_a_password(
    urls: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is in the worker's log."""
    monkeypatch.setenv("SEAMLESSFLOW_ENGINE_URLS", urls)
    monkeypatch.setenv("SEAMLESSFLOW_ENGINE_API_KEY", "open-sesame")
    with pytest.raises(ValueError, match=why) as refused:
        WorkerSettings()

    assert "sesame" not in str(refused.value)


def test_a_folder_is_named_as_the_servers_see_it() -> None:
    """By the longest beginning that fits; where none does, by the same path."""
    from seamlessflow_rollout_worker.engines.remote.options import RemoteOptions

    options = RemoteOptions(path_map={"/srv": "/mnt/a", "/srv/node1": "/mnt/b"})

    assert options.path_there(Path("/srv/node1/r/00000003")) == "/mnt/b/r/00000003"
    assert options.path_there(Path("/srv/node2/r/00000003")) == "/mnt/a/node2/r/00000003"
    assert options.path_there(Path("/other/r")) == "/other/r"
