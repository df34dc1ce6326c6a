"""Versions that do not fit a real model: the worker samples on with the one it has, says why, and takes the next good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from structlog.testing import capture_logs
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from seamlessflow.contracts import SegmentSampled
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from tests.services.rollout_worker.rollout_world import RUN, World
from tests.services.rollout_worker.test_rollout_real_engines import (
    PROMPT,
    _greedy,
    greedy,
    publish,
    start,
    stop_worker,
    tiny_llama,
)

NAME = "model.norm.weight"
Tensors = dict[str, Tensor]


def of_another_architecture(good: Tensors) -> Tensors:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=128, n_embd=32, n_layer=2, n_head=4))
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def with_no_numbers(good: Tensors) -> Tensors:
    return good | {NAME: good[NAME] * float("nan")}


BAD: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "another architecture": (of_another_architecture, "unknown ['transformer."),
    "a tensor is missing": (lambda good: {n: t for n, t in good.items() if n != NAME}, f"missing ['{NAME}']"),
    "a tensor too many": (lambda good: good | {"extra": good[NAME].clone()}, "unknown ['extra']"),
    "another dtype": (lambda good: good | {NAME: good[NAME].half()}, f"{NAME}: expected torch.float32"),
    "another shape": (lambda good: good | {NAME: good[NAME][:-1].clone()}, f"{NAME}: expected shape (32,), got (31,)"),
    "no numbers": (with_no_numbers, f"tensor {NAME} has values that are NaN"),
}
"""What is made of good tensors, and words of the reason that is given."""


@pytest.mark.parametrize("what", BAD)
async def test_a_version_that_is_no_version_of_this_model_stops_nobody(world: World, tmp_path: Path, what: str):
    """Refused before anything is paused; an answer meanwhile is the last good version's, the one after is the next one's."""
    make, why = BAD[what]
    old, new = tiny_llama(0), tiny_llama(1)
    await world.open_run(model={"engine": "transformers"})
    await publish(world, old, 0, tmp_path)
    worker, task = start(world)
    await world.lease()
    request = await world.ask("c1", prompt=PROMPT, max_tokens=2)
    await world.until_ended(seconds=60.0)
    with capture_logs() as logs:
        tensors = {name: tensor.contiguous() for name, tensor in new.state_dict().items()}
        publish_folder(world.store, weights_path(RUN, 1), {WEIGHTS_FILE: save(make(tensors))}, {})
        await world.move_head(1)
        await world.until(lambda: any(line["event"] == "weights.skipped" for line in logs), seconds=30.0)
        await world.publish(_greedy(request, "c2"))
        await world.until_ended(2, seconds=30.0)
    await publish(world, new, 2, tmp_path)
    await world.until(lambda: worker._tenure.engine.weights_version == 2, seconds=30.0)
    await world.publish(_greedy(request, "c3"))
    await world.until_ended(3, seconds=30.0)
    await stop_worker(worker, task)

    skipped = next(line for line in logs if line["event"] == "weights.skipped")
    assert why in skipped["reason"]
    assert (skipped["weights_version"], skipped["sampling_with"]) == (1, 0)
    assert await world.tokens("c2") == greedy(old, 12) and await world.tokens("c3") == greedy(new, 12)
    versions = {segment.generation: segment.weights_version for segment in await world.said(SegmentSampled)}
    assert (versions["c2"], versions["c3"]) == (0, 2)
