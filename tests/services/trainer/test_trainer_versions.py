"""Which versions the trainer publishes in full and which as changes, and what of them stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from structlog.testing import capture_logs
from torch import Tensor
from trainer_world import RUN, World, by_index, run_document

from seamlessflow.blobs import Store
from seamlessflow.contracts import Role, StepTaken, TrainerStarted, TrainingEnded, WeightsHead, WeightsPublished
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights.fetching import fetch_version
from seamlessflow.weights.manifests import DELTA_FILE, read_manifest
from services.rollout_worker.versions import LocalVersions, read_tensors
from services.trainer.publishing import KEEP_VERSIONS
from services.trainer.versioning import VersionMaker


class Weights:
    """Live float32 weights that steps change a little, and the store they are published to."""

    def __init__(self, folder: Path, *, dtype: torch.dtype = torch.bfloat16, full_every: int = 3) -> None:
        torch.manual_seed(0)
        self.live = {"body": torch.randn(200, 300), "norm": torch.ones(300), "steps": torch.tensor([0])}
        self.store, self.folder, self.dtype = Store(f"file://{folder}/store"), folder, dtype
        self.maker = VersionMaker(dtype, full_every)
        self.newest = -1

    def step(self, size: float = 1e-4) -> None:
        for tensor in self.live.values():
            tensor += size * torch.randn(tensor.shape) if tensor.is_floating_point() else 1

    def publish(self, *, is_said: bool = True) -> set[str]:
        """The names of the version's files. is_said False: the trainer died before it was the head."""
        version = self.newest + 1
        files = self.maker.make(self.live, version=version, step=version, newest=self.newest)
        publish_folder(self.store, weights_path(RUN, version), files.contents(), files.facts)
        self.newest = version
        if is_said:
            self.maker.published(version)
        return set(read_manifest(self.store, weights_path(RUN, version), version).files)

    def fetched(self) -> dict[str, Tensor]:
        """The newest version as a newcomer has it."""
        fetch_version(self.store, weights_path(RUN, self.newest), self.newest, self.folder / "here")
        return load((self.folder / "here" / WEIGHTS_FILE).read_bytes())

    def served(self) -> dict[str, Tensor]:
        return {name: each.to(self.dtype) if each.is_floating_point() else each for name, each in self.live.items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_every_so_many_versions_are_full_and_all_but_the_first_have_their_changes(tmp_path: Path) -> None:
    """So followers never fetch a full one; every version is the live weights in the served dtype, bit for bit."""
    weights, kinds = Weights(tmp_path), []
    for _ in range(7):
        kinds.append(weights.publish())
        assert is_same(weights.fetched(), weights.served())
        weights.step()

    full, both, changes = {WEIGHTS_FILE}, {WEIGHTS_FILE, DELTA_FILE}, {DELTA_FILE}
    assert kinds == [full, changes, changes, both, changes, changes, both]


def test_with_full_every_one_all_versions_are_full(tmp_path: Path) -> None:
    """And say nothing of changes."""
    weights = Weights(tmp_path, full_every=1)

    for _ in range(3):
        assert weights.publish() == {WEIGHTS_FILE}
        assert is_same(weights.fetched(), weights.served())
        weights.step()


def test_changes_that_are_as_large_as_the_weights_are_not_published(tmp_path: Path) -> None:
    """float32 values all change: half a version or more, for which a full one is simpler."""
    weights = Weights(tmp_path, dtype=torch.float32)
    weights.publish()
    weights.step(1e-2)

    assert weights.publish() == {WEIGHTS_FILE}
    assert is_same(weights.fetched(), weights.served())


def test_a_version_that_was_not_published_to_its_end_is_built_on_by_none(tmp_path: Path) -> None:
    """Nobody may have it: the next one is full, the one after that builds on it."""
    weights = Weights(tmp_path, full_every=9)
    weights.publish()
    weights.step()
    weights.publish(is_said=False)
    weights.step()

    assert weights.publish() == {WEIGHTS_FILE}
    weights.step()
    assert weights.publish() == {DELTA_FILE}
    assert is_same(weights.fetched(), weights.served())


def test_weights_that_stay_as_they_are_cost_next_to_nothing(tmp_path: Path) -> None:
    """A learning rate of zero, or a step that was too small to see in the served dtype."""
    weights = Weights(tmp_path)
    weights.publish()
    weights.publish()

    assert weights.store.fs.size(weights.store.path(weights_path(RUN, 1), DELTA_FILE)) < 1000


def test_what_the_trainer_publishes_is_what_a_worker_hands_to_its_engine(tmp_path: Path) -> None:
    """Every version, in full once and then by its changes, also where some were skipped."""
    weights = Weights(tmp_path, full_every=9)
    versions = LocalVersions(weights.store, RUN, tmp_path / "worker")
    with capture_logs() as logs:
        for version in range(6):
            weights.publish()
            if version != 3:
                head = WeightsHead(weights_version=version, step=version, path=weights_path(RUN, version), epoch=0)
                loaded = read_tensors(versions.fetch(head))
                assert is_same(loaded, weights.served())  # type: ignore[arg-type]
            weights.step()

    fetched = [(line["is_held"], line["num_deltas"]) for line in logs if line["event"] == "weights.fetched"]
    assert fetched == [(False, 0), (True, 1), (True, 1), (True, 2), (True, 1)]


async def run_steps(folder: Path, model: Path, *, steps: int, learning_rate: float, full_every: int) -> World:
    """The world after so many steps in bfloat16."""
    document = run_document(model, steps=steps, learning_rate=learning_rate)
    document["model"]["dtype"] = "bfloat16"
    world = await World(folder, document | {"weights": {"full_every": full_every}}).open()
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        for step in range(steps):
            policy = await world.policy()
            for name in "ab":
                await world.answer(f"{name}{step}", by_index(), policy=policy)
            await world.hears(StepTaken, count=step + 1)
        await world.hears(TrainingEnded)
    return world


@pytest.mark.parametrize(("full_every", "kept"), [(100, range(8)), (3, range(3, 8)), (1, range(4, 8))], ids=str)
async def test_what_newer_versions_build_on_stays(tmp_path: Path, tiny_llama: Path, full_every: int, kept: range) -> None:
    """Newcomers can have every one of the newest versions; what lies before the full one they build on is removed."""
    world = await run_steps(tmp_path, tiny_llama, steps=7, learning_rate=1e-5, full_every=full_every)

    assert world.store.folders(f"{RUN}/weights") == [f"{version:08d}" for version in kept]
    newest = (await world.head()).weights_version
    for version in range(newest - KEEP_VERSIONS + 1, newest + 1):
        fetch_version(world.store, weights_path(RUN, version), version, tmp_path / f"v{version}")


async def test_a_step_at_a_small_learning_rate_is_published_in_few_bytes(tmp_path: Path, tiny_llama: Path) -> None:
    """And the journal says how many."""
    world = await run_steps(tmp_path, tiny_llama, steps=2, learning_rate=1e-6, full_every=10)

    sizes = [published.num_bytes for published in await world.heard(WeightsPublished)]
    assert max(sizes[1:]) < sizes[0] / 2
