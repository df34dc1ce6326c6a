"""Which versions the trainer publishes in full and which as changes, and what of them stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file
from structlog.testing import capture_logs
from torch import Tensor

from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.contracts import Role, StepTaken, TrainerStarted, TrainingEnded, WeightsHead, WeightsPublished
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, folders_of_versions, publish_folder, weights_path
from seamlessflow.weights.fetch import fetch_version
from seamlessflow.weights.manifest import DELTA_FILE, read_manifest
from seamlessflow.weights.retention import NEWEST
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_rollout_worker.weights.local_versions import LocalVersions
from seamlessflow_trainer.weights.publisher import WeightsPublisher
from seamlessflow_trainer.weights.safetensors_writer import safetensors_chunks
from seamlessflow_trainer.weights.version_files import MOST_MISSES, DeltaVersionBuilder
from tests.services.trainer.trainer_world import RUN, World, by_index, run_document


class Weights:
    """Live float32 weights that steps change a little, and the store they are published to."""

    def __init__(self, folder: Path, *, dtype: torch.dtype = torch.bfloat16, full_every: int = 3) -> None:
        torch.manual_seed(0)
        self.live = {"body": torch.randn(200, 300), "norm": torch.ones(300), "steps": torch.tensor([0])}
        self.store, self.folder, self.dtype = Store(f"file://{folder}/store"), folder, dtype
        self.maker = DeltaVersionBuilder(dtype, full_every)
        self.newest = -1

    def step(self, size: float = 1e-4) -> None:
        for tensor in self.live.values():
            tensor += size * torch.randn(tensor.shape) if tensor.is_floating_point() else 1

    def publish(self, *, is_said: bool = True) -> set[str]:
        """The names of the version's files. is_said False: the trainer died before it was the head."""
        version = self.newest + 1
        files = self.maker.make(self.live, version=version, step=version, newest=self.newest)
        path = weights_path(RUN, version)
        publish_folder(self.store, path, files.contents(), files.facts)
        self.newest = version
        if is_said:
            self.maker.published(version, path)
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
                loaded = load_file(versions.fetch(head).weights_file)
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

    assert list(folders_of_versions(world.store, f"{RUN}/weights")) == list(kept)
    for published in (await world.heard(WeightsPublished))[-NEWEST:]:
        version = published.weights_version
        fetch_version(world.store, published.path, version, tmp_path / f"v{version}")


async def test_a_step_at_a_small_learning_rate_is_published_in_few_bytes(tmp_path: Path, tiny_llama: Path) -> None:
    """And the journal says how many."""
    world = await run_steps(tmp_path, tiny_llama, steps=3, learning_rate=1e-6, full_every=10)

    sizes = [published.num_bytes for published in await world.heard(WeightsPublished)]
    assert max(sizes[1:-1]) < sizes[0] / 2


async def test_the_last_version_of_a_run_is_loaded_by_itself(tmp_path: Path, tiny_llama: Path) -> None:
    """Whoever copies what a finished run left needs one folder, and that one file of it."""
    world = await run_steps(tmp_path, tiny_llama, steps=2, learning_rate=1e-6, full_every=10)

    kinds = [
        set(read_manifest(world.store, published.path, published.weights_version).files)
        for published in await world.heard(WeightsPublished)
    ]
    assert kinds == [{WEIGHTS_FILE}, {DELTA_FILE}, {WEIGHTS_FILE, DELTA_FILE}]


def publisher_of(world: World) -> WeightsPublisher:
    claim = CommitClaim(world.bus, world.journal, RUN, "test")  # not taken: good as long as there is none
    return WeightsPublisher(world.bus, world.store, world.journal, claim, RUN, VersionSteps(), torch.bfloat16, full_every=10)


async def test_a_manifest_that_cannot_be_read_once_removes_nothing(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything may build on that one: collecting fails and is tried again after the next step."""
    world = await World(tmp_path, run_document(tiny_llama)).open()
    publisher, weights = publisher_of(world), Weights(tmp_path)
    for step in range(8):
        await publisher.publish(weights.live, step=step, epoch=0)
        weights.step()
    before, read = world.store.folders(f"{RUN}/weights"), world.store.read

    def away(path: str) -> bytes:
        if "/00000000" in path:
            raise Unavailable("slow down")
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "read", away)
        with pytest.raises(Unavailable):
            await publisher.collect()
    assert world.store.folders(f"{RUN}/weights") == before

    world.store.remove(f"{RUN}/weights/{before[0]}/{MANIFEST}")  # no full version at all: the same
    await publisher.collect()
    assert world.store.folders(f"{RUN}/weights") == before


async def test_a_late_writer_touches_nothing_of_what_another_published(tmp_path: Path, tiny_llama: Path) -> None:
    """Superseded between making a version and writing it: the files of the same number are not in its way, nor read."""
    world = await World(tmp_path, run_document(tiny_llama)).open()
    late, weights = publisher_of(world), Weights(tmp_path)
    await late.publish(weights.live, step=0, epoch=0)
    files = late._version_builder.make(weights.live, version=1, step=1, newest=0)
    other = publisher_of(world)
    await other.join()
    weights.step()
    published = await other.publish(weights.live, step=1, epoch=0)
    late._write(weights_path(RUN, 1, "late"), files)
    weights.step()
    newest = await other.publish(weights.live, step=2, epoch=0)

    assert published.path != weights_path(RUN, 1)
    assert read_manifest(world.store, newest.path, 2).base_path == published.path
    fetch_version(world.store, newest.path, 2, tmp_path / "here")
    assert is_same(load((tmp_path / "here" / WEIGHTS_FILE).read_bytes()), weights.served())


def test_float32_weights_that_all_change_are_compared_no_more(tmp_path: Path) -> None:
    """Some versions in a row that were not worth it: no copy is kept, every version is full and as it should be."""
    weights = Weights(tmp_path, dtype=torch.float32, full_every=9)
    for _ in range(MOST_MISSES + 3):
        assert weights.publish() == {WEIGHTS_FILE}
        assert is_same(weights.fetched(), weights.served())
        weights.step(1e-2)

    assert not weights.maker._last


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_integers_of_every_width_are_written(dtype: torch.dtype) -> None:
    """As the format has them."""
    written = torch.tensor([0, 1, 100], dtype=dtype)

    read = load(b"".join(safetensors_chunks({"a": written})))["a"]
    assert read.dtype == dtype and read.tolist() == written.tolist()


def test_a_dtype_that_the_format_has_not_is_refused_by_name() -> None:
    """At once, before anything is written: no retry makes it better."""
    with pytest.raises(BadInput, match=r"tensor a is torch\.complex64"):
        safetensors_chunks({"a": torch.zeros(2, dtype=torch.complex64)})
