"""Every engine under one roof: a running one, other weights for it, and the exact logprobs it should report."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.fleet.cost import cost_of
from loadtest.fleet.timed_clock import Scale
from loadtest.fleet.timed_engine import TimedEngine
from services.rollout_worker.engines.base import Chunk, Engine, Finish, SamplingParams
from services.rollout_worker.engines.scripted import ScriptedEngine
from services.rollout_worker.engines.toy_policy import ToyPolicy

VOCAB_SIZE = 96
CONTEXT = 128
SLOTS = 4
FIRST_VERSION = 7
PROMPT = [5, 17, 3, 44, 8, 61]


@dataclass(frozen=True)
class Case:
    """One engine and what a test needs to know about it."""

    engine: Engine
    start: Callable[[], object]
    """Coroutine function: (re)start the engine with its first weights and FIRST_VERSION."""
    other_weights: Mapping[str, object]
    logprobs: Callable[[list[int], list[int], float, bool], list[float]]
    """(prompt, sampled, temperature, under other weights) -> logprobs by an independent full computation."""
    tolerance: float


@pytest.fixture(scope="session")
def tiny_llamas(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two random Llamas of one shape, float32: the first weights and the other ones."""
    import gc

    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            initializer_range=0.3,
        )
        folder = tmp_path_factory.mktemp(f"llama{seed}")
        LlamaForCausalLM(config).save_pretrained(folder)
        folders.append(folder)
    gc.freeze()  # transformers' manager collects garbage at each stop, a second long over all that torch imports
    return folders


@pytest.fixture(params=["scripted", "timed", "transformers", "continuous_batching"])
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    if request.param in ("scripted", "timed"):
        made = _scripted() if request.param == "scripted" else _timed()
    else:
        made = _with_model(request.param, request.getfixturevalue("tiny_llamas"))
    await made.start()  # type: ignore[misc]
    yield made
    await made.engine.stop()


def _scripted() -> Case:
    engine = ScriptedEngine(vocab_size=VOCAB_SIZE, num_slots=SLOTS, max_context_tokens=CONTEXT)
    other = [[math.sin(row * VOCAB_SIZE + column) for column in range(VOCAB_SIZE)] for row in range(VOCAB_SIZE)]

    def logprobs(prompt: list[int], sampled: list[int], temperature: float, under_other: bool) -> list[float]:
        policy = ToyPolicy(VOCAB_SIZE, seed=0)
        if under_other:
            policy.overwrite({"logits": other})
        ids = [*prompt, *sampled]
        return [policy.logprobs_after(ids[i - 1], temperature)[ids[i]] for i in range(len(prompt), len(ids))]

    async def start() -> None:
        await engine.start(Path("unused"), weights_version=FIRST_VERSION)

    return Case(engine, start, {"logits": other}, logprobs, 1e-9)


def _timed() -> Case:
    """The load tests' engine, which computes nothing; a modelled second is a fifth of a real one here."""
    cost, scale = cost_of(), Scale(time_scale=5.0)
    engine = TimedEngine(
        cost,
        scale,
        words=range(VOCAB_SIZE),
        vocab_size=VOCAB_SIZE,
        num_slots=SLOTS,
        max_context_tokens=CONTEXT,
        report_seconds=0.01,
    )
    other = [math.sin(column) for column in range(VOCAB_SIZE)]

    def logprobs(prompt: list[int], sampled: list[int], temperature: float, under_other: bool) -> list[float]:
        scaled = [logit / (temperature or 1.0) for logit in (other if under_other else [0.0] * VOCAB_SIZE)]
        total = math.log(sum(map(math.exp, scaled)))
        return [scaled[token] - total for token in sampled]

    async def start() -> None:
        await engine.start(Path("unused"), weights_version=FIRST_VERSION)

    return Case(engine, start, {"logits": other}, logprobs, 1e-9)


def _with_model(name: str, folders: list[Path]) -> Case:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from services.rollout_worker.engines.continuous import ContinuousBatchingEngine
    from services.rollout_worker.engines.transformers_engine import TransformersEngine

    kind = ContinuousBatchingEngine if name == "continuous_batching" else TransformersEngine
    engine = kind(dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT, num_threads=1, seed=0)

    def logprobs(prompt: list[int], sampled: list[int], temperature: float, under_other: bool) -> list[float]:
        model = AutoModelForCausalLM.from_pretrained(folders[under_other], dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
        table = torch.log_softmax(logits / temperature, dim=-1)
        return table.gather(1, torch.tensor(sampled).unsqueeze(1)).squeeze(1).tolist()

    async def start() -> None:
        await engine.start(folders[0], weights_version=FIRST_VERSION)

    return Case(engine, start, load_file(folders[1] / "model.safetensors"), logprobs, 2e-5)


def params(**changes: object) -> SamplingParams:
    """Twelve tokens at temperature 1, unless a test says otherwise."""
    settings: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 12, "stop_token_ids": (), "seed": 3}
    return SamplingParams(**{**settings, **changes})  # type: ignore[arg-type]


@dataclass
class Answer:
    """A request read to its end. versions has one entry per token."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Finish | None


def joined(chunks: list[Chunk]) -> Answer:
    answer = Answer([], [], [], None)
    for chunk in chunks:
        assert answer.finish is None, "a chunk came after the last one"
        assert len(chunk.token_ids) == len(chunk.logprobs)
        answer.ids += chunk.token_ids
        answer.logprobs += chunk.logprobs
        answer.versions += [chunk.weights_version] * len(chunk.token_ids)
        answer.finish = chunk.finish
    return answer


async def sample(engine: Engine, prompt: list[int] = PROMPT, request_id: str = "r", **changes: object) -> Answer:
    return joined([chunk async for chunk in engine.generate(request_id, prompt, params(**changes))])
