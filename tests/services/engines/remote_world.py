"""Servers, a remote engine on them, and requests that run there: what tests of the remote engine play with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from seamlessflow_rollout_worker.engines.base import Chunk
from seamlessflow_rollout_worker.engines.remote.engine import RemoteEngine
from seamlessflow_rollout_worker.engines.remote.options import RemoteOptions
from seamlessflow_rollout_worker.engines.scripted_engine import ToyPolicy
from tests.services.engines.conftest import CONTEXT, FIRST_VERSION, PROMPT, VOCAB_SIZE, Answer, joined, params
from tests.services.engines.served import Served

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


@asynccontextmanager
async def opened_world(folder: Path) -> AsyncIterator[World]:
    """One whose engines and servers end with the block."""
    made = World(folder)
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
