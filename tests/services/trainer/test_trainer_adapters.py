"""A LoRA run as the trainer lives it: the base once, adapters alone from then on, and it learns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from seamlessflow.contracts import Role, RunStopRequested, StepTaken, TrainerStarted, TrainingEnded, WeightsPublished
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from seamlessflow.weights.manifest import read_manifest
from tests.services.trainer.trainer_world import RUN, World, by_index, make_tiny_llama, run_document


def lora_document(model: Path, lora: dict[str, Any] | None = None, **algorithm: object) -> dict[str, Any]:
    return run_document(model, **algorithm) | {"lora": {"rank": 2, "alpha": 4, **(lora or {})}}


async def run_steps(world: World, *, steps: int, first: int = 1) -> None:
    """Answer for so many steps, and wait until each is taken."""
    for step in range(first, first + steps):
        policy = await world.policy()
        for name in "ab":
            await world.answer(f"{name}{step}", by_index(), policy=policy)
        await world.hears(StepTaken, count=step)


async def stop_reason(world: World) -> str:
    """Wait until the trainer asks for the run's end."""
    async with asyncio.timeout(30):
        while (record := await world.bus.last("CTL", f"sf.ctl.run.{RUN}.stop")) is None:
            await asyncio.sleep(0.01)
    stop = await world.journal.open(record)
    assert isinstance(stop, RunStopRequested)
    return stop.reason


async def test_a_lora_run_publishes_its_base_once_and_then_adapters(tmp_path: Path, tiny_llama: Path) -> None:
    """Every version, the first and the last too; what all of them took is less than a full version."""
    world = await World(tmp_path, lora_document(tiny_llama, steps=3)).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await run_steps(world, steps=3)
        await world.hears(TrainingEnded)

    published = await world.heard(WeightsPublished)
    manifests = [read_manifest(world.store, each.path, each.weights_version) for each in published]
    assert [set(each.files) for each in manifests] == 4 * [{ADAPTER_CONFIG_FILE, ADAPTER_FILE}]
    [base] = world.store.folders(f"{RUN}/base")
    assert {each.adapter.base_digest for each in manifests if each.adapter} == {f"blake3:{base}"}
    assert not any("lora" in name for name in load(world.store.read(f"{RUN}/base/{base}/{WEIGHTS_FILE}")))
    assert all(
        each.num_bytes == sum(f.num_bytes for f in m.files.values()) for each, m in zip(published, manifests, strict=True)
    )


async def test_a_trainer_that_died_goes_on_with_the_adapters_of_its_checkpoint(tmp_path: Path, tiny_llama: Path) -> None:
    """Under the next number, on the same base; a newcomer gets what was trained."""
    world = await World(tmp_path, lora_document(tiny_llama, steps=2, every_steps=1)).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await run_steps(world, steps=1)
    before = await world.weights()
    async with world.trainer():
        await world.hears(TrainerStarted, count=2)
        after = await world.weights()
        await run_steps(world, steps=1, first=2)
        await world.hears(TrainingEnded)

    assert [(each.weights_version, each.step) for each in await world.heard(WeightsPublished)] == [
        (0, 0),
        (1, 1),
        (2, 1),
        (3, 2),
    ]
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert len(world.store.folders(f"{RUN}/base")) == 1


async def test_a_model_folder_that_changed_in_between_stops_the_run(tmp_path: Path) -> None:
    """Its adapters belong to what it was."""
    folder = make_tiny_llama(tmp_path / "model")
    world = await World(tmp_path, lora_document(folder)).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
    world.model.model.norm.weight.data += 1
    world.model.save_pretrained(folder)
    async with world.trainer():
        reason = await stop_reason(world)

    assert "its files have changed since the run began" in reason
    assert len(await world.heard(WeightsPublished)) == 1


async def test_a_lora_run_that_cannot_begin_says_what_to_set(tmp_path: Path, tiny_llama: Path) -> None:
    """Nothing is published."""
    world = await World(tmp_path, lora_document(tiny_llama, {"target_modules": ["lm_head"]})).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        reason = await stop_reason(world)

    assert "lm_head shares its weight" in reason and "lora.target_modules" in reason
    assert not await world.heard(WeightsPublished)


@pytest.mark.parametrize("learning_rate", [0.0, 5e-2])
async def test_logprobs_agree_with_what_the_merged_weights_sample(
    tmp_path: Path, tiny_llama: Path, learning_rate: float
) -> None:
    """At a rate of zero, and after steps that moved the policy: the gap is rounding alone."""
    world = await World(tmp_path, lora_document(tiny_llama, steps=4, learning_rate=learning_rate)).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        first = await world.weights()
        await run_steps(world, steps=4)
    moved = max(float((tensor - first[name]).abs().max()) for name, tensor in (await world.weights()).items())

    assert [step.metrics["logprob_gap"] < 1e-5 for step in await world.heard(StepTaken)] == 4 * [True]
    assert moved == 0.0 if learning_rate == 0.0 else moved > 0.1


async def test_a_rewarded_token_becomes_likely(tmp_path: Path, tiny_llama: Path) -> None:
    """Of 24 tokens one is rewarded: by adapters of rank 2 alone it is sampled more and more."""
    world = await World(
        tmp_path, lora_document(tiny_llama, steps=12, learning_rate=5e-2, group_size=4, drop_zero_variance=False)
    ).open()
    torch.manual_seed(0)
    rewards: list[float] = []

    def is_seven(answer: list[int]) -> float:
        rewards.append(sum(token == 7 for token in answer) / len(answer))
        return rewards[-1]

    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        for step in range(1, 13):
            policy = await world.policy()
            for name in "ab":
                await world.answer(f"{name}{step}", is_seven, policy=policy, members=range(4))
            await world.hears(StepTaken, count=step)

    assert sum(rewards[:16]) / 16 < 0.3 and sum(rewards[-16:]) / 16 > 0.6
