"""The engine's half of ``seamlessflow doctor --engine vllm`` on a real model; and the death of vLLM's worker process.

What the trainer's half and the judgement make of a report is the same for every engine (test_engine_check). One test, for an
engine takes long to start: the check starts its own twice, and what is killed at the end is the second one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; ./task test:vllm runs these tests")

import psutil

from seamlessflow.cli.doctor_engine import PROMPT as CHAT
from seamlessflow.cli.doctor_engine import QUESTIONS, Wanted, document_of
from seamlessflow.config.settings import Settings
from seamlessflow.engine_check import SAME_WITHIN, EngineOrder, likeness
from seamlessflow.models import resolve_model
from seamlessflow_rollout_worker import engine_check as rollout
from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.engines.factory import dtype_of
from seamlessflow_rollout_worker.engines.vllm.engine import VllmEngine
from tests.services.engines.conftest import PROMPT, sample

pytestmark = pytest.mark.vllm

NUM_TOKENS = 12
EXACT = 1e-6
"""Of logprobs under the same weights, computed in the same batches. One that was interrupted was cut up differently."""


class Lasting(VllmEngine):
    """Goes on after the check's last stop: then something is done to it that it does not come back from."""

    num_stops = 0

    async def stop(self) -> None:
        self.num_stops += 1
        if self.num_stops != 2:
            await super().stop()


async def test_the_self_check_of_an_updated_engine_is_that_of_a_fresh_one_and_a_worker_process_that_dies_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2 in bfloat16: an engine that was updated samples as a freshly loaded one, tokens and logprobs."""
    folder = resolve_model("smollm2-135m-instruct", Settings().model_cache)
    document = document_of(Wanted("vllm", str(folder), "auto", NUM_TOKENS, 0.8, 60.0))
    made: list[Lasting] = []

    def build(config, settings, model) -> VllmEngine:
        made.append(Lasting(dtype=dtype_of(config, model), num_slots=4, max_context_tokens=128, num_threads=1))
        return made[-1]

    monkeypatch.setattr(rollout, "build_engine", build)
    prompts = tuple(CHAT.format(question=question) for question in QUESTIONS[:2])
    order = EngineOrder(
        document=document, folder=folder, scratch=tmp_path, prompts=prompts, num_tokens=NUM_TOKENS, temperature=0.8
    )
    report = await rollout.run(order)
    await _killed(made[0])

    rounding = SAME_WITHIN["bfloat16"]
    assert likeness(report.other, report.other_fresh).is_same(EXACT)
    assert likeness(report.again, report.first).is_same(EXACT)
    assert likeness(report.interrupted, report.first).is_same(rounding)
    assert not likeness(report.other, report.first).is_same(rounding)
    assert report.dtype == "bfloat16" and report.num_while_paused == 0
    before, after = report.drawn_versions
    for each, count in zip(report.drawn, report.num_before, strict=True):
        assert (each.finish, len(each.tokens)) == ("length", NUM_TOKENS)
        assert list(each.versions) == [before] * count + [after] * (NUM_TOKENS - count)


async def _killed(engine: VllmEngine) -> None:
    """A worker process of vLLM's is killed while it samples: whoever waits is told, and every later call is."""
    running = asyncio.create_task(sample(engine, PROMPT, max_tokens=400))
    await asyncio.sleep(0.2)
    alive = [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
    next(child for child in alive if "Worker" in " ".join(child.cmdline())).kill()
    for told in (running, engine.pause()):
        with pytest.raises(EngineError, match="died"):
            await asyncio.wait_for(told, 60)
    await engine.stop()
