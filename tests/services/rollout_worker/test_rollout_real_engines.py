"""The service with the engines it really builds: a tiny random Llama under both that serve models, and the scripted one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import Int32s, Sampling, SegmentSampled, Service
from seamlessflow.runtime import make_context
from seamlessflow.weights import model_path, publish_folder, weights_path
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.service import RolloutWorker
from tests.services.rollout_worker.rollout_world import NODE, RUN, World

PROMPT = (5, 6, 7)
ENGINES = ["transformers", "continuous_batching"]


def tiny_llama(seed: int, *, num_heads: int = 4, head_size: int = 8, most_tokens: int = 128) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=num_heads * head_size, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=num_heads, num_key_value_heads=num_heads // 2, max_position_embeddings=most_tokens,
        tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def greedy(model: LlamaForCausalLM, count: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def word(token_id: int) -> str:
    return f"w{token_id} "


def words() -> bytes:
    """A tokenizer.json of 64 words."""
    made = Tokenizer(models.WordLevel({word(i): i for i in range(64)}, unk_token=word(0)))
    made.decoder = decoders.Fuse()
    return made.to_str().encode()


async def publish(world: World, model: LlamaForCausalLM, version: int, folder: Path) -> None:
    model.config.save_pretrained(folder)
    if version == 0:
        files = {"config.json": (folder / "config.json").read_bytes(), "tokenizer.json": words()}
        publish_folder(world.store, model_path(RUN), files, {})
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    publish_folder(world.store, weights_path(RUN, version), {"model.safetensors": save(tensors)}, {})
    await world.move_head(version)


def start(world: World) -> tuple[RolloutWorker, asyncio.Task[None]]:
    settings = WorkerSettings(
        node=NODE, instance="i1", work_dir=world.folder / "work", store_url=world.store.url, torch_threads=1
    )
    context = make_context(Service.ROLLOUT_WORKER, settings, MemoryBus(world.server), capabilities=("rollout",))
    worker = RolloutWorker(context, settings)
    return worker, asyncio.create_task(worker.run())


async def stop_worker(worker: RolloutWorker, task: asyncio.Task[None]) -> None:
    worker._context.stopping.set()
    await task


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_real_model_samples_what_it_would_alone_before_and_after_new_weights(world: World, tmp_path: Path, engine: str):
    """Greedy tokens are those of a plain forward pass of the very version each segment names."""
    old, new = tiny_llama(0), tiny_llama(1)
    await world.open_run(model={"engine": engine})
    await publish(world, old, 0, tmp_path)
    worker, task = start(world)
    await world.lease()
    request = await world.ask("c1", prompt=PROMPT, max_tokens=12)
    await world.publish(_greedy(request, "c2"))
    await world.until_ended(2, seconds=60.0)
    await publish(world, new, 1, tmp_path)
    await world.until(lambda: worker._tenure.engine.weights_version == 1, seconds=60.0)
    await world.publish(_greedy(request, "c3"))
    await world.until_ended(3, seconds=60.0)
    await stop_worker(worker, task)

    assert await world.tokens("c2") == greedy(old, 12)
    assert await world.tokens("c3") == greedy(new, 12)
    versions = {segment.generation: segment.weights_version for segment in await world.said(SegmentSampled)}
    assert (versions["c2"], versions["c3"]) == (0, 1)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_real_engine_hands_a_generation_on_and_back(world: World, tmp_path: Path, engine: str):
    """Interrupted in the middle by a lease, it ends exactly as it would have: seeded draws depend on the position only."""
    await world.open_run(model={"engine": engine})
    await publish(world, tiny_llama(0), 0, tmp_path)
    worker, task = start(world)
    await world.lease()
    await world.ask("c1", prompt=PROMPT, max_tokens=100, episode="t-0-0")
    await world.until_tokens(4, "c1")
    await world.lease("train", hand_back=True)
    await world.until(lambda: worker._standing().holds_device is False, seconds=30.0)
    num_before = len(await world.tokens("c1"))
    await world.lease()
    await world.until_acked()
    await world.ask("c2", prompt=PROMPT, max_tokens=100, episode="t-1-0")
    await world.until_acked()
    await stop_worker(worker, task)

    assert 4 <= num_before < 100
    assert await world.tokens("c1") == await world.tokens("c2")


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_real_engine_stops_at_a_stop_text(world: World, tmp_path: Path, engine: str):
    """With the token that completes it, read along or not; its slot is free for the next one."""
    model = tiny_llama(0)
    whole = greedy(model, 12)
    text = "".join(map(word, whole))
    stop = text[text.index(" ") + 1 :][:9]  # from the second word on, over at least three tokens
    count = next(n for n in range(13) if stop in "".join(map(word, whole[:n])))
    await world.open_run(model={"engine": engine}, fleet={"slots": 1})
    await publish(world, model, 0, tmp_path)
    worker, task = start(world)
    await world.lease()
    request = await world.ask("c0", prompt=PROMPT, max_tokens=1)
    for generation, stream in (("c1", False), ("c2", True)):
        await world.publish(_greedy(request, generation).model_copy(update={"stop": ("no such", stop), "stream": stream}))
    await world.publish(_greedy(request, "c3"))
    await world.until_ended(4, seconds=60.0)
    await stop_worker(worker, task)

    assert 2 < count < 12
    for generation in ("c1", "c2"):
        assert await world.tokens(generation) == whole[:count]
    assert await world.tokens("c3") == whole
    finishes = {end.generation: end.finish for end in await world.ended()}
    assert [finishes[each] for each in ("c1", "c2", "c3")] == ["stop", "stop", "length"]


@pytest.mark.parametrize("count", [20])
async def test_the_scripted_engine_serves_a_run_that_asks_for_it(world: World, count: int):
    """Nothing but the run document decides which engine it is."""
    await world.open_run(model={"engine": "scripted"})
    await world.publish_model()
    await world.publish_weights(0)
    worker, task = start(world)
    await world.lease()
    for number in range(count):
        await world.ask(f"c{number}", episode=f"t-{number}-0", max_tokens=8)
    await world.until_ended(count)
    await world.until_acked()
    await stop_worker(worker, task)

    ended = {end.generation: end.num_tokens for end in await world.ended()}
    assert ended == {f"c{number}": len(await world.tokens(f"c{number}")) for number in range(count)}


def _greedy(request, generation: str):
    return request.model_copy(
        update={
            "generation": generation,
            "episode": f"{generation}-0-0",
            "sampling": Sampling(max_tokens=12, temperature=0.0),
            "suffix": Int32s(PROMPT),
            "stop_token_ids": (),
        }
    )
