"""Every engine under one roof: a running one, other weights for it, and the exact logprobs it should report."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import save_file as save_arrays

from loadtest.fleet.cost import cost_of
from loadtest.fleet.timed_clock import Scale
from loadtest.fleet.timed_engine import TimedEngine
from seamlessflow_rollout_worker.engines.base import Chunk, Engine, Finish, SamplingParams
from seamlessflow_rollout_worker.engines.remote.engine import RemoteEngine
from seamlessflow_rollout_worker.engines.remote.options import RemoteOptions
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine, ToyPolicy
from tests.services.engines.served import Served

if TYPE_CHECKING:
    from tests.services.engines.remote_world import World

VOCAB_SIZE = 96
CONTEXT = 128
LONG_CONTEXT = 1024
"""For what must last: so small a model has sampled a hundred tokens before anybody can interrupt it."""
SLOTS = 4
FIRST_VERSION = 7
PROMPT = [5, 17, 3, 44, 8, 61]


@dataclass(frozen=True)
class Case:
    """One engine and what a test needs to know about it."""

    engine: Engine
    start: Callable[[], object]
    """Coroutine function: (re)start the engine with its first weights and FIRST_VERSION."""
    first_weights: Path
    """The file of what ``start`` serves."""
    other_weights: Path
    bad_weights: list[Path]
    """Files that must be refused, each for a reason of its own."""
    logprobs: Callable[[list[int], list[int], float, bool], list[float]]
    """(prompt, sampled, temperature, under other weights) -> logprobs by an independent full computation."""
    tolerance: float
    keeps_draws: bool = True
    """False: a request that goes on elsewhere, or after a pause, draws other numbers than it would have drawn."""
    records: Callable[[float, float], bool] = lambda temperature, top_p: True
    """(temperature, top_p) -> whether logprobs are ours there; requests of others must be refused."""

    def assert_same(self, ids: list[int], whole: list[int]) -> None:
        """What was sampled in parts is what would have been sampled in one; as long as it, where draws cannot be kept."""
        assert (ids == whole) if self.keeps_draws else (len(ids) == len(whole))


@pytest.fixture(scope="session")
def tiny_llamas(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two random Llamas of one shape, float32: the first weights and the other ones."""
    return _make_llamas(tmp_path_factory, num_heads=4, head_size=8)


@pytest.fixture(scope="session")
def wide_llamas(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same with the smallest head that vLLM's attention on a CPU has."""
    return _make_llamas(tmp_path_factory, num_heads=2, head_size=32)


@pytest.fixture(scope="session")
def tied_llamas(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """And with one matrix for input and output, as small models have: vLLM keeps a packed copy of it on a CPU."""
    return _make_llamas(tmp_path_factory, num_heads=2, head_size=32, tie_word_embeddings=True, most_tokens=LONG_CONTEXT)


def _make_llamas(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    num_heads: int,
    head_size: int,
    tie_word_embeddings: bool = False,
    most_tokens: int | None = None,
) -> list[Path]:
    import gc

    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=num_heads * head_size,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=num_heads,
            num_key_value_heads=num_heads // 2,
            max_position_embeddings=most_tokens or CONTEXT,
            initializer_range=0.3,
            tie_word_embeddings=tie_word_embeddings,
        )
        folder = tmp_path_factory.mktemp(f"llama{seed}")
        LlamaForCausalLM(config).save_pretrained(folder)
        folders.append(folder)
    gc.freeze()  # transformers' manager collects garbage at each stop, a second long over all that torch imports
    return folders


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept_engines() -> AsyncIterator[dict[str, Engine]]:
    """Engines that take long to start, by name: a module starts them once."""
    kept: dict[str, Engine] = {}
    yield kept
    for engine in kept.values():
        await engine.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Servers without an engine yet."""
    from tests.services.engines.remote_world import opened_world  # which needs what stands here

    async with opened_world(tmp_path) as made:
        yield made


REMOTE = ("remote-vllm", "remote-completions", "remote-sglang")


@pytest_asyncio.fixture(
    params=["scripted", "timed", "transformers", "continuous_batching", *REMOTE, pytest.param("vllm", marks=pytest.mark.vllm)],
    loop_scope="module",
)
async def case(request: pytest.FixtureRequest, tmp_path: Path, kept_engines: dict[str, Engine]) -> AsyncIterator[Case]:
    """In the loop of its module, to which a kept engine belongs."""
    served = None
    if request.param in ("scripted", "timed"):
        made = _scripted(tmp_path) if request.param == "scripted" else _timed(tmp_path)
    elif request.param in REMOTE:
        served = _served(request.param.removeprefix("remote-"))
        await served.start()
        made = _remote(served, tmp_path)
    elif request.param == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed here; ./task test:vllm runs these tests")
        made = _vllm(request.getfixturevalue("tied_llamas"), tmp_path, kept_engines)
    else:
        made = _with_model(request.param, request.getfixturevalue("tiny_llamas"), tmp_path)
    if request.param not in kept_engines:
        await made.start()  # type: ignore[misc]
    if request.param == "vllm":
        kept_engines["vllm"] = made.engine
    yield made
    if request.param in kept_engines:
        await _back_to_the_start(made)
    else:
        await made.engine.stop()
    if served is not None:
        await served.die()


async def _back_to_the_start(made: Case) -> None:
    """As if the engine had just been started, for the next test."""
    await made.engine.pause()
    if made.engine.weights_version != FIRST_VERSION:
        await made.engine.load_weights(made.first_weights, weights_version=FIRST_VERSION)
    await made.engine.resume()


def _logits_file(folder: Path, name: str, logits: object) -> Path:
    """Weights for engines without a neural network."""
    file = folder / f"{name}.safetensors"
    save_arrays({"logits": np.asarray(logits)}, file)
    return file


def _no_safetensors(folder: Path) -> Path:
    file = folder / "torn.safetensors"
    file.write_bytes(b"half")
    return file


def _bad_logits(folder: Path, good: object) -> list[Path]:
    """Files with too few numbers, a dtype it does not know, an infinity, nothing that can be read; and one that is missing."""
    logits = np.asarray(good)
    infinite = logits.copy()
    infinite.flat[0] = np.inf
    bad = {"short": logits[:-1], "half": logits.astype(np.float16), "infinite": infinite}
    files = [_logits_file(folder, name, each) for name, each in bad.items()]
    return [*files, _no_safetensors(folder), folder / "missing.safetensors"]


def _bad_tensors(folder: Path, good: Path) -> list[Path]:
    """Of a real model: a tensor missing, unknown, misshapen, of another dtype; nothing that can be read; no file."""
    from safetensors.torch import load_file, save_file

    tensors, name = load_file(good), "model.norm.weight"
    bad = {
        "lacking": {n: t for n, t in tensors.items() if n != name},
        "unknown": {**tensors, "extra": tensors[name].clone()},
        "misshapen": {**tensors, name: tensors[name][:-1].clone()},
        "other-dtype": {**tensors, name: tensors[name].half()},
    }
    for stem, each in bad.items():
        save_file(each, folder / f"{stem}.safetensors")
    return [*(folder / f"{stem}.safetensors" for stem in bad), _no_safetensors(folder), folder / "missing.safetensors"]


def broken_weights(llamas: list[Path], folder: Path) -> Path:
    """Weights of which no logit is a number."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(llamas[0] / "model.safetensors")
    save_file({n: torch.full_like(t, float("nan")) for n, t in tensors.items()}, folder / "broken.safetensors")
    return folder / "broken.safetensors"


def _scripted(folder: Path) -> Case:
    engine = ScriptedEngine(vocab_size=VOCAB_SIZE, num_slots=SLOTS, max_context_tokens=CONTEXT)
    other = [[math.sin(row * VOCAB_SIZE + column) for column in range(VOCAB_SIZE)] for row in range(VOCAB_SIZE)]

    def logprobs(prompt: list[int], sampled: list[int], temperature: float, under_other: bool) -> list[float]:
        policy = ToyPolicy(VOCAB_SIZE, seed=0)
        if under_other:
            policy.overwrite(other)
        ids = [*prompt, *sampled]
        return [policy.logprobs_after(ids[i - 1], temperature)[ids[i]] for i in range(len(prompt), len(ids))]

    async def start() -> None:
        await engine.start(Path("unused"), weights_version=FIRST_VERSION)

    first = [[*ToyPolicy(VOCAB_SIZE, seed=0).logprobs_after(row, 1.0)] for row in range(VOCAB_SIZE)]
    files = _logits_file(folder, "first", first), _logits_file(folder, "other", other)
    return Case(engine, start, *files, _bad_logits(folder, other), logprobs, 1e-9)


def _served(api: str) -> Served:
    """SGLang's logprobs are ours; vLLM's are after top-p, too, as with ``--logprobs-mode processed_logprobs``."""
    meaning = "TEMPERED" if api == "sglang" else "PROCESSED"
    return Served(api, vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT, seconds_per_token=0.002, meaning=meaning)


def _remote(served: Served, folder: Path) -> Case:
    """SGLang's draws are those of its deterministic inference: by seed and position, as ours."""
    toy = _scripted(folder)
    for weights, name in ((toy.first_weights, "start"), (toy.other_weights, "update")):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
        weights.rename(folder / name / "model.safetensors")
    options = RemoteOptions.of({"api": served.api, "health_seconds": 0.2, "control_seconds": 5.0})
    engine = RemoteEngine([served.url], options, temperature=1.0, top_p=1.0, num_slots=SLOTS, max_context_tokens=CONTEXT)

    async def start() -> None:
        await engine.start(folder / "start", weights_version=FIRST_VERSION)

    is_exact = served.meaning == "TEMPERED"
    # Which numbers make sense is found out where they are loaded; a worker refuses infinite ones as it fetches them.
    bad = [file for file in toy.bad_weights if file.stem != "infinite"]
    return Case(
        engine,
        start,
        folder / "start" / "model.safetensors",
        folder / "update" / "model.safetensors",
        bad,
        toy.logprobs,
        1e-9,
        keeps_draws=served.api == "sglang",
        records=lambda temperature, top_p: is_exact or top_p == 1.0 or temperature == 0.0,
    )


def _timed(folder: Path) -> Case:
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

    files = _logits_file(folder, "first", [0.0] * VOCAB_SIZE), _logits_file(folder, "other", other)
    return Case(engine, start, *files, _bad_logits(folder, other), logprobs, 1e-9)


def _with_model(name: str, folders: list[Path], scratch: Path) -> Case:
    from seamlessflow_rollout_worker.engines.transformers.continuous_engine import ContinuousBatchingEngine
    from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine

    kind = ContinuousBatchingEngine if name == "continuous_batching" else TransformersEngine
    engine = kind(dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT, num_threads=1, seed=0)
    return _of_llamas(engine, folders, scratch, tolerance=2e-5)


def _vllm(folders: list[Path], scratch: Path, kept: dict[str, Engine]) -> Case:
    from seamlessflow_rollout_worker.engines.vllm.engine import VllmEngine

    # Blocks as small as the kernels take them: prefixes shorter than one are never shared.
    how = {"dtype": "float32", "num_slots": SLOTS, "max_context_tokens": CONTEXT, "seed": 0}
    engine = kept.get("vllm") or VllmEngine(**how, num_threads=1, options={"block_size": 32})
    return _of_llamas(engine, folders, scratch, tolerance=2e-5)


def _of_llamas(engine: Engine, folders: list[Path], scratch: Path, *, tolerance: float) -> Case:
    import torch
    from transformers import AutoModelForCausalLM

    def logprobs(prompt: list[int], sampled: list[int], temperature: float, under_other: bool) -> list[float]:
        model = AutoModelForCausalLM.from_pretrained(folders[under_other], dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
        table = torch.log_softmax(logits / temperature, dim=-1)
        return table.gather(1, torch.tensor(sampled).unsqueeze(1)).squeeze(1).tolist()

    async def start() -> None:
        await engine.start(folders[0], weights_version=FIRST_VERSION)

    files = [folder / "model.safetensors" for folder in folders]
    return Case(engine, start, *files, _bad_tensors(scratch, files[1]), logprobs, tolerance)


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
