"""The service on vLLM, a process of its own behind a real server: an update in the middle of what it samples, and kill -9."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; ./task test:vllm runs these tests")

import psutil
import torch
from transformers import LlamaForCausalLM

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts import (
    GenerationClaimed,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    Sampling,
    SegmentSampled,
    WeightsLoaded,
)
from tests.services.rollout_worker.rollout_world import RUN, World
from tests.services.rollout_worker.test_rollout_on_a_real_server import start_process
from tests.services.rollout_worker.test_rollout_real_engines import PROMPT, publish, tiny_llama

pytestmark = [pytest.mark.vllm, pytest.mark.system]

NUM_GENERATIONS, NUM_TOKENS = 8, 900
TOLERANCE = 2e-4
"""Of logprobs in float32, against a full forward pass."""


def llama(seed: int) -> LlamaForCausalLM:
    """With the smallest head that vLLM's attention on a CPU has, and room for answers that an update can come upon."""
    return tiny_llama(seed, num_heads=2, head_size=32, most_tokens=1024)


def generation(name: str) -> GenerationRequested:
    """Tokens that nothing stops."""
    return GenerationRequested(
        run=RUN,
        generation=name,
        episode=f"{name}-0-0",
        suffix=Int32s(PROMPT),
        sampling=Sampling(max_tokens=NUM_TOKENS),
        stop_token_ids=(),
        seed=7,
        tag="rollout",
        bucket=0,
        shard=0,
    )


def full_forward(model: LlamaForCausalLM, ids: list[int]) -> list[float]:
    """Logprobs of what was sampled after PROMPT."""
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 : -1]
    found: list[float] = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1).tolist()
    return found


async def test_updates_end_no_generation_and_a_service_that_is_killed_leaves_no_process(
    world: World, own_server: EmbeddedServer, tmp_path: Path
):
    """Each generation is claimed once and whole; each segment has the one version that sampled it, and its logprobs.

    Updated again and again until one came upon generations in their middle: so small a model is fast, a busy machine late.
    """
    models = [llama(0), llama(1)]
    world.bus = await connect(own_server.url, name="test")
    await world.open_run(model={"engine": "vllm", "max_context_tokens": 1024}, fleet={"slots": NUM_GENERATIONS})
    await publish(world, models[0], 0, tmp_path)
    process = await start_process(world, own_server)
    try:
        await world.lease()
        await world.until_said(WeightsLoaded, seconds=300.0)
        for version in range(1, 20):
            names = [f"c{version}-{number}" for number in range(NUM_GENERATIONS)]
            for name in names:
                await world.publish(generation(name))
            await world.until_said(GenerationClaimed, version * NUM_GENERATIONS, seconds=60.0)
            await publish(world, models[version % 2], version, tmp_path)
            await world.until_said(WeightsLoaded, version + 1, seconds=60.0)
            await world.until_ended(version * NUM_GENERATIONS, seconds=120.0)
            if await check_round(world, names, version, models) > 0:
                break
        else:
            pytest.fail("no update came in the middle of a generation")
        assert max(loaded.num_frozen for loaded in await world.said(WeightsLoaded)) > 0

        await world.publish(generation("last"))
        await world.until_said(GenerationClaimed, version * NUM_GENERATIONS + 1, seconds=60.0)
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, timeout=20)
        assert len(family) >= 2 and not alive
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await world.bus.close()


async def check_round(world: World, names: list[str], version: int, models: list[LlamaForCausalLM]) -> int:
    """How many generations have tokens of two versions. What follows an update keeps the old one's keys and values, so the
    logprobs that a full forward pass knows are those before it, and those of who had no token yet."""
    said = await world.said(SegmentSampled)
    claims = [claim.generation for claim in await world.said(GenerationClaimed)]
    ends = {end.generation: end for end in await world.ended()}
    num_mixed = 0
    for name in names:
        segments = [segment for segment in said if segment.generation == name]
        ids = [token for segment in segments for token in segment.token_ids]
        stamps = [segment.weights_version for segment in segments for _ in segment.token_ids]
        logprobs = [logprob for segment in segments for logprob in segment.logprobs]
        assert (ends[name].finish, len(ids)) == (GenerationFinish.LENGTH, NUM_TOKENS) and claims.count(name) == 1
        runs = [(stamp, len(list(run))) for stamp, run in groupby(stamps)]
        assert [stamp for stamp, _ in runs] in ([version - 1], [version], [version - 1, version])
        first, count = runs[0]
        assert logprobs[:count] == pytest.approx(full_forward(models[first % 2], ids)[:count], abs=TOLERANCE)
        num_mixed += len(runs) == 2
    return num_mixed
