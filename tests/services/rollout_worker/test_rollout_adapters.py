"""A worker in a LoRA run: its engine gets whole weights, base and adapter merged, and never one that does not fit."""

from __future__ import annotations

import torch
from safetensors.torch import save
from structlog.testing import capture_logs

from seamlessflow.contracts import WeightsLoaded
from seamlessflow.weights import publish_folder, weights_path
from seamlessflow.weights.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterFacts, adapter_config, base_path
from seamlessflow.weights.digests import digest_of
from seamlessflow.weights.manifest import version_facts
from tests.services.rollout_worker.rollout_world import NODE, RUN, Worker, World

BASE = save({"up.weight": torch.tensor([[1.0, 2.0]]), "norm.weight": torch.tensor([5.0])})
DIGEST = digest_of(BASE)
CONFIG = adapter_config(rank=1, alpha=2, target_modules=["up"], base_name="m")
FACTS = AdapterFacts(base_path(RUN, DIGEST), DIGEST, CONFIG)


async def publish_adapter(world: World, version: int, *, rank: int = 1) -> None:
    """One that adds its version to every weight of the layer, twice (alpha / rank)."""
    tensors = {
        "base_model.model.up.lora_A.weight": torch.ones(rank, 2),
        "base_model.model.up.lora_B.weight": torch.full((1, rank), float(version)),
    }
    facts = version_facts(weights_version=version, step=version, dtype="float32", base=None, tensors=None, adapter=FACTS)
    publish_folder(world.store, weights_path(RUN, version), {ADAPTER_CONFIG_FILE: b"{}", ADAPTER_FILE: save(tensors)}, facts)
    await world.move_head(version)


async def started(world: World, version: int) -> Worker:
    """A worker that begins with a version."""
    await world.open_run()
    await world.publish_model()
    publish_folder(world.store, FACTS.base_path, {"model.safetensors": BASE}, {"dtype": "float32", "base": None})
    await publish_adapter(world, version)
    worker = world.worker(by_itself=True)
    await world.lease()
    await world.until_said(WeightsLoaded, 1)
    return worker


async def test_an_engine_gets_base_and_adapter_as_one_file(world: World):
    """Also who comes late; the base comes once, and every version starts from it."""
    with capture_logs() as logs:
        worker = await started(world, 2)
        assert (worker.engine.calls, worker.engine.weights_version) == (["start"], 2)
        for version in (3, 4):
            await publish_adapter(world, version)
            await world.until(lambda version=version: worker.engine.weights_version == version)
            added = 2.0 * version
            assert worker.engine.loaded == {"up.weight": [[1.0 + added, 2.0 + added]], "norm.weight": [5.0]}

    fetched = [line["num_bytes"] for line in logs if line["event"] == "weights.fetched"]
    assert len(fetched) == 3 and fetched[0] == fetched[1] + len(BASE) and fetched[1] == fetched[2]


async def test_an_adapter_that_does_not_fit_stops_nobody(world: World):
    """It is skipped with a reason; sampling goes on with the last good one, and the next good one is loaded."""
    worker = await started(world, 1)
    with capture_logs() as logs:
        await publish_adapter(world, 2, rank=3)
        await world.until(lambda: any(line["event"] == "weights.skipped" for line in logs))
    await world.ask("c1")
    await world.until_acked()

    (skipped, *_) = [line for line in logs if line["event"] == "weights.skipped"]
    assert "of rank 1 the matrices of up must be" in skipped["reason"] and skipped["sampling_with"] == 1
    assert len(await world.tokens("c1")) == 8 and not any(call.startswith("load") for call in worker.engine.calls)
    folder = world.folder / "work" / "rollout-worker" / NODE / RUN
    assert sorted(each.name for each in folder.iterdir() if each.name.isdigit()) == ["00000001"]

    await publish_adapter(world, 3)
    await world.until(lambda: worker.engine.weights_version == 3)
    assert worker.engine.loaded["up.weight"] == [[7.0, 8.0]]
