"""``python -m seamlessflow_rollout_worker.engine_check ORDER REPORT``: put one engine through its self-check, without a bus.

    start ─▶ greedy ─▶ drawn, the same weights published again in the middle ─▶ greedy, again in the middle
          ─▶ other weights ─▶ greedy ─▶ the first ones ─▶ greedy ─▶ stop ─▶ start with the others ─▶ greedy ─▶ the first ones

Both files are JSON (seamlessflow.engine_check). What is told there is judged elsewhere; a failure of the engine ends
the process with exit code 2 and the reason on standard error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seamlessflow.config.run import parse_run_config
from seamlessflow.engine_check import EngineOrder, EngineReport, Sampled, report_on_order
from seamlessflow.errors import BadInput
from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow.weights import WEIGHTS_FILE

from .config import WorkerSettings
from .engines.base import Engine, SamplingParams
from .engines.factory import build_engine, dtype_of

# One request of an engine's self-check, read as it comes.


class Reading:
    """One request and what came of it so far."""

    def __init__(self, engine: Engine, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        self._prompt, self._tokens, self._logprobs, self._versions = tuple(prompt), list[int](), list[float](), list[int]()
        self._finish = ""
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(engine, request_id, params))

        self._task.add_done_callback(lambda task: self._news.set())

    async def _read(self, engine: Engine, request_id: str, params: SamplingParams) -> None:
        async for chunk in engine.generate(request_id, list(self._prompt), params):
            self._tokens += chunk.token_ids
            self._logprobs += chunk.logprobs
            self._versions += [chunk.weights_version] * len(chunk.token_ids)
            if chunk.finish is not None:
                self._finish = chunk.finish.value
            self._news.set()

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    async def has(self, count: int) -> None:
        """Wait for so many tokens, or its end. Raises what the engine raised."""
        while self.num_tokens < count and not self._task.done():
            self._news.clear()
            await self._news.wait()
        if self._task.done():
            self._task.result()

    async def sampled(self) -> Sampled:
        """The whole of it. Raises what the engine raised."""
        await self._task
        return Sampled(
            prompt=self._prompt,
            tokens=tuple(self._tokens),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            finish=self._finish,
        )


# Model folders for an engine's self-check: in the precision they are served in, and with other weights that are still a model.
#
# The only module of it that knows torch and safetensors.


_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")


def write_model(folder: Path, target: Path, dtype: str, *, noise: float = 0.0, seed: int = 0) -> Path:
    """``folder`` as one file of weights in ``dtype``, in ``target``, which is returned.

    noise: each matrix is changed by so much of its own size, at random; 0: not at all. Raises BadInput without safetensors.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise BadInput(f"{folder} has no *.safetensors; the check reads nothing else")
    weights: dict[str, Tensor] = {}
    for shard in shards:
        weights |= load_file(shard)
    stream = torch.Generator().manual_seed(seed)
    changed = {name: _changed(tensor, noise, stream).to(_kept(tensor, dtype)) for name, tensor in sorted(weights.items())}
    target.mkdir(parents=True)
    save_file(changed, target / WEIGHTS_FILE, metadata={"format": "pt"})
    for file in folder.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    return target


def _changed(tensor: Tensor, noise: float, stream: torch.Generator) -> Tensor:
    if not noise or tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    values = tensor.float()
    return values + noise * values.std() * torch.randn(values.shape, generator=stream)


def _kept(tensor: Tensor, dtype: str) -> torch.dtype:
    """Integers stay what they are."""
    served: torch.dtype = getattr(torch, dtype)
    return served if tensor.is_floating_point() else tensor.dtype


SETTLE_SECONDS = 0.05
"""What a pause reported has reached its readers by then; and so long is waited for tokens that must not come."""
OTHER_NOISE = 0.05
"""Relative change of the other weights: enough for other logprobs, too little for a model that says nothing any more."""


class Rehearsal:
    """One engine and what it is asked. Versions count up from 1: none is used twice."""

    def __init__(self, engine: Engine, order: EngineOrder, prompts: Sequence[Sequence[int]]) -> None:
        self._engine, self._order, self._prompts = engine, order, prompts
        self._version = self._num_requests = 0

    async def start(self, folder: Path) -> float:
        """Returns the seconds it took."""
        began, self._version = time.monotonic(), self._version + 1
        await self._engine.start(folder, weights_version=self._version)
        return time.monotonic() - began

    async def greedy(self, *, again_in_the_middle: Path | None = None) -> tuple[Sampled, ...]:
        """Each prompt alone. With a folder: its weights are published in the middle of each."""
        found = []
        for prompt in self._prompts:
            if again_in_the_middle is not None:  # before it begins: a fast engine would be done meanwhile
                await self._engine.stage_weights(again_in_the_middle / WEIGHTS_FILE)
            reading = self._begin(prompt, temperature=0.0, seed=None)
            if again_in_the_middle is not None:
                await reading.has(self._order.num_tokens // 4)
                await self._swap(again_in_the_middle / WEIGHTS_FILE)
            found.append(await reading.sampled())
        return tuple(found)

    async def update(self, folder: Path) -> None:
        """Publish the weights of a folder, under the next version."""
        await self._engine.stage_weights(folder / WEIGHTS_FILE)
        await self._swap(folder / WEIGHTS_FILE)

    async def _swap(self, file: Path) -> None:
        await self._engine.pause()
        try:
            await self._load(file)
        finally:
            await self._engine.resume()

    async def _load(self, file: Path) -> None:
        self._version += 1
        await self._engine.load_weights(file, weights_version=self._version)

    async def drawn(self, folder: Path) -> dict[str, object]:
        """All prompts at once, twice each, with an update in the middle; the fields of an EngineReport that tell of it."""
        order, before, file = self._order, self._version, folder / WEIGHTS_FILE
        staged_at = time.monotonic()
        await self._engine.stage_weights(file)
        stage_seconds = time.monotonic() - staged_at
        readings = [
            self._begin(prompt, temperature=order.temperature, seed=order.seed + number)
            for number, prompt in enumerate([*self._prompts] * 2)
        ]
        for reading in readings:
            await reading.has(order.num_tokens // 4)
        paused_at = time.monotonic()
        try:
            await self._engine.pause()
            asked_at = time.monotonic()
            await asyncio.sleep(SETTLE_SECONDS)
            counts = [reading.num_tokens for reading in readings]
            await asyncio.sleep(SETTLE_SECONDS)
            late = sum(reading.num_tokens for reading in readings) - sum(counts)
            loads_at = time.monotonic()
            await self._load(file)
        finally:
            await self._engine.resume()
        pause_seconds = (time.monotonic() - loads_at) + (asked_at - paused_at)
        return {
            "drawn": tuple([await reading.sampled() for reading in readings]),
            "num_before": tuple(counts),
            "num_while_paused": late,
            "drawn_versions": (before, self._version),
            "stage_seconds": stage_seconds,
            "pause_seconds": pause_seconds,
        }

    def _begin(self, prompt: Sequence[int], *, temperature: float, seed: int | None) -> Reading:
        self._num_requests += 1
        params = SamplingParams(temperature, 1.0, self._order.num_tokens, (), seed, is_streamed=True)
        return Reading(self._engine, f"check-{self._num_requests}", prompt, params)


async def run(order: EngineOrder) -> EngineReport:
    """The whole of it. Raises what the engine raises; it is stopped in any case."""
    config = parse_run_config(order.document)
    if not (order.folder / "config.json").is_file():
        raise BadInput(f"{order.folder} is not a model folder: it has no config.json")
    dtype = dtype_of(config, order.folder)
    base, other = order.scratch / "base", order.scratch / "other"
    await asyncio.to_thread(write_model, order.folder, base, dtype)
    await asyncio.to_thread(write_model, order.folder, other, dtype, noise=OTHER_NOISE, seed=order.seed)
    tokenizer = ChatTokenizer.load(base)
    engine = build_engine(config, WorkerSettings(), base)
    rehearsal = Rehearsal(engine, order, [tokenizer.encode(text) for text in order.prompts])
    try:
        start_seconds = await rehearsal.start(base)
        first = await rehearsal.greedy()
        drawn = await rehearsal.drawn(base)
        interrupted = await rehearsal.greedy(again_in_the_middle=base)
        await rehearsal.update(other)
        after_other = await rehearsal.greedy()
        await rehearsal.update(base)
        again = await rehearsal.greedy()
        await engine.stop()
        await rehearsal.start(other)
        other_fresh = await rehearsal.greedy()
        await rehearsal.update(base)  # servers that go on running (engine "remote") have the model again that was asked for
    finally:
        await engine.stop()
    return EngineReport.model_validate(
        {
            "first": first,
            "interrupted": interrupted,
            "other": after_other,
            "again": again,
            "other_fresh": other_fresh,
            "start_seconds": start_seconds,
            "dtype": dtype,
            **drawn,
        }
    )


def main(arguments: Sequence[str]) -> int:
    return report_on_order(arguments, EngineOrder, lambda order: asyncio.run(run(order)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
