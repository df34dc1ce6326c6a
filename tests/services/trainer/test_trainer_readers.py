"""Readers and the trainer: what they read stays, what they lack is published in full, what a run leaves can be had."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
import transformers
from structlog.testing import capture_logs
from typer.testing import CliRunner

from seamlessflow.cli import app
from seamlessflow.contracts import Role, StepTaken, TrainerStarted, TrainingEnded, TrainingEndRequested, WeightsPublished
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.fetch import fetch_version
from seamlessflow.weights.manifest import DELTA_FILE, read_manifest
from seamlessflow.weights.reader_leases import Reader
from seamlessflow.weights.retention import NEWEST
from seamlessflow_trainer.steps import train_step
from seamlessflow_trainer.weights import publisher
from tests.services.trainer.trainer_world import RUN, World, by_index, run_document


async def world_of(folder: Path, model: Path, *, steps: int) -> World:
    """In bfloat16 at a small learning rate: versions are changes but for the first and the last."""
    document = run_document(model, steps=steps, learning_rate=1e-5)
    document["model"]["dtype"] = "bfloat16"
    world = await World(folder, document | {"weights": {"full_every": 100}}).open()
    await world.lease(Role.TRAIN)
    return world


async def take(world: World, first: int, last: int) -> None:
    """Answer so that steps first + 1 to last are taken."""
    for step in range(first, last):
        policy = await world.policy()
        for name in "ab":
            await world.answer(f"{name}{step}", by_index(), policy=policy)
        await world.hears(StepTaken, count=step + 1)


async def kinds(world: World) -> list[str]:
    """Of the versions: F full, c changes, Fc both."""
    names = {WEIGHTS_FILE: "F", DELTA_FILE: "c"}
    return [
        "".join(names[name] for name in sorted(read_manifest(world.store, said.path, said.weights_version).files, reverse=True))
        for said in await world.heard(WeightsPublished)
    ]


async def test_a_version_that_somebody_reads_outlives_many_steps(tmp_path: Path, tiny_llama: Path) -> None:
    """With what it builds on; and goes after the next step once it was read."""
    document = run_document(tiny_llama, steps=9, learning_rate=1e-5)
    document["model"]["dtype"] = "bfloat16"
    world = await World(tmp_path, document | {"weights": {"full_every": 2}}).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await take(world, 0, 1)
        head = await world.head()
        async with Reader(world.bus, RUN, "slow").lease(head):
            await take(world, 1, 7)
            fetch_version(world.store, head.path, head.weights_version, tmp_path / "read")
        assert (tmp_path / "read" / WEIGHTS_FILE).is_file()
        await take(world, 7, 8)
        async with asyncio.timeout(10):  # it is collected after StepTaken
            while world.store.exists(f"{head.path}/manifest.json"):
                await asyncio.sleep(0.02)


async def test_who_cannot_have_the_newest_gets_it_in_full_although_no_step_comes(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's only worker, say: without fresh tokens there would never be a step that is published."""
    monkeypatch.setattr(train_step, "LOOK_SECONDS", 0.05)
    world = await world_of(tmp_path, tiny_llama, steps=9)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await take(world, 0, 1)
        head, before = await world.head(), await world.weights()
        await Reader(world.bus, RUN, "w1").missed(head.weights_version, head.path, "its changes are damaged")
        again = await world.hears(WeightsPublished, count=3)
        await asyncio.sleep(0.3)
        after = await world.weights()

    assert (again.weights_version, again.step) == (head.weights_version + 1, head.step)
    assert await kinds(world) == ["F", "c", "Fc"]
    assert all(before[name].equal(after[name]) for name in before)


async def test_what_is_published_again_and_again_does_not_fill_the_store(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step comes that would remove what is old."""
    monkeypatch.setattr(train_step, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(publisher, "FIRST_REST_SECONDS", 0.0)
    world = await world_of(tmp_path, tiny_llama, steps=9)
    await Reader(world.bus, RUN, "w1").missed(999, "p", "the store cannot be reached from here")
    async with world.trainer():
        await world.hears(WeightsPublished, count=9)
        assert len(world.store.folders(f"{RUN}/weights")) <= NEWEST + 2


async def test_the_next_step_is_published_in_full_for_who_missed_one(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as it is some versions after the last full one; and changes go on from it."""
    monkeypatch.setattr(train_step, "LOOK_SECONDS", 600.0)
    world = await world_of(tmp_path, tiny_llama, steps=9)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await Reader(world.bus, RUN, "w1").missed(1, "p", "its changes are damaged")
        await take(world, 0, 5)

    assert await kinds(world) == ["F", "c", "c", "Fc", "c", "c"]


async def test_a_run_that_is_stopped_leaves_a_version_that_is_loaded_by_itself(tmp_path: Path, tiny_llama: Path) -> None:
    """Not only one that took all its steps; what evaluations afterwards ask for is that version."""
    world = await world_of(tmp_path, tiny_llama, steps=9)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await take(world, 0, 2)
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="stopped", train_rest=False))
        ended = await world.hears(TrainingEnded)

    head = await world.head()
    assert await kinds(world) == ["F", "c", "c", "Fc"]
    assert (ended.step, ended.weights_version) == (2, head.weights_version) == (2, 3)


async def test_a_run_that_ends_where_its_newest_version_is_full_writes_no_other(tmp_path: Path, tiny_llama: Path) -> None:
    """Stopped before its first step."""
    world = await world_of(tmp_path, tiny_llama, steps=9)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="stopped", train_rest=False))
        await world.hears(TrainingEnded)

    assert await kinds(world) == ["F"]


async def test_what_a_suspended_run_leaves_is_loaded_by_its_line(tmp_path: Path, tiny_llama: Path) -> None:
    """Ctrl-C: changes alone, and everything that they build on is there."""
    world = await world_of(tmp_path, tiny_llama, steps=99)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await take(world, 0, 7)

    head = await world.head()
    assert (await kinds(world))[-1] == "c"
    assert fetch_version(world.store, head.path, head.weights_version, tmp_path / "left").route.start == 0


async def test_words_that_cannot_be_read_cost_a_step_nothing_but_space(tmp_path: Path, tiny_llama: Path) -> None:
    """A lease may be among them: nothing is removed, and that is said."""
    world = await world_of(tmp_path, tiny_llama, steps=9)
    await (await world.bus.kv("READERS")).put(f"{RUN}.reads.x", b"\xc1")
    with capture_logs() as logs:
        async with world.trainer():
            await world.hears(TrainerStarted)
            await take(world, 0, 1)

    assert {"weights.not_collected", "weights.readers_unseen"} <= {line["event"] for line in logs}


@pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "suspended"])
async def test_what_is_exported_is_loaded_as_any_model_is(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """By the store alone, of a run that ended and of one that is suspended on changes."""
    monkeypatch.delenv("SEAMLESSFLOW_NATS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    world = await world_of(tmp_path, tiny_llama, steps=2 if is_ended else 99)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await take(world, 0, 2)
        if is_ended:
            await world.hears(TrainingEnded)
    argv = ["weights", "export", RUN, str(tmp_path / "out"), "--store", world.store.url]
    result = await asyncio.to_thread(CliRunner().invoke, app, argv)

    assert result.exit_code == 0, result.exception
    assert (await kinds(world))[-1] == ("Fc" if is_ended else "c")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    loaded, wanted = model.state_dict(), await world.weights()
    assert all(loaded[name].equal(wanted[name]) for name in wanted)
    assert model.dtype == torch.bfloat16
