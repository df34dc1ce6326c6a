"""A trainer of now takes up a run that the release before BLAKE3 began: its base, its adapters, its checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder
from seamlessflow.weights.adapters import AdapterFacts
from seamlessflow.weights.digests import split_digest
from seamlessflow.weights.fetch import fetch_version
from seamlessflow.weights.manifest import read_manifest
from seamlessflow.weights.safetensors_file import map_tensors
from seamlessflow_trainer.steps.checkpoints import CheckpointStore
from seamlessflow_trainer.weights.lora_versions import AdapterVersionBuilder, publish_base
from tests.store.earlier_store import BASE, FULL, LAYER, LORA, earlier_store, path_of

MODEL = {name: torch.from_numpy(values) for name, values in BASE.items()}


@pytest.fixture
def earlier(tmp_path: Path) -> Store:
    return earlier_store(tmp_path)


def published(store: Store, run: str = LORA, model: dict[str, torch.Tensor] = MODEL) -> tuple[str, str]:
    return publish_base(store, run, model, torch.bfloat16)


def test_its_base_is_known_by_the_digest_it_was_named_by(earlier: Store):
    """Nothing is written: the folder and the digest are those of then."""
    [name] = earlier.folders(f"{LORA}/base")

    assert published(earlier) == (f"{LORA}/base/{name}", f"sha256:{name}")
    assert earlier.folders(f"{LORA}/base") == [name]


def test_another_model_is_refused_by_that_digest_too(earlier: Store):
    """A real mismatch, in digits of one algorithm."""
    [name] = earlier.folders(f"{LORA}/base")
    other = {**MODEL, "norm.weight": torch.zeros(6)}

    with pytest.raises(BadInput, match=rf"the base {name[:12]}, and the model here is \w{{12}} \(by sha256\)"):
        published(earlier, model=other)
    assert earlier.folders(f"{LORA}/base") == [name]


def test_adapters_of_now_stand_on_its_base(earlier: Store, tmp_path: Path):
    """Workers find it by what the manifest says."""
    config = read_manifest(earlier, path_of(LORA, 0), 0).adapter.config
    maker = AdapterVersionBuilder(AdapterFacts(*published(earlier), config))
    matrices = {f"{LAYER}.lora_A.weight": torch.ones(1, 6), f"{LAYER}.lora_B.weight": torch.ones(4, 1)}
    made = maker.make(matrices, version=1, step=1, newest=1)
    publish_folder(earlier, path_of(LORA, 1), made.contents(), made.facts)
    fetch_version(earlier, path_of(LORA, 1), 1, tmp_path / "here")

    words = map_tensors(tmp_path / "here" / WEIGHTS_FILE)["body.weight"].words
    assert np.array_equal((words.astype(np.uint32) << 16).view(np.float32).reshape(4, 6), BASE["body.weight"] + 2)


def test_a_base_of_now_is_used_again(tmp_path: Path):
    """Named by BLAKE3, written once."""
    store = Store(f"file://{tmp_path}/store")
    path, digest = published(store, "demo")

    assert published(store, "demo") == (path, digest) == (f"demo/base/{split_digest(digest)[1]}", digest)
    assert digest.startswith("blake3:")


def test_a_base_whose_writer_died_is_none(earlier: Store):
    """Without a manifest it does not exist, whatever its name: ours is put beside it."""
    [name] = earlier.folders(f"{LORA}/base")
    earlier.remove(f"{LORA}/base/{name}/{MANIFEST}")

    path, digest = published(earlier)
    assert digest.startswith("blake3:") and earlier.exists(f"{path}/{MANIFEST}") and not path.endswith(name)


def test_a_manifest_that_names_no_base_is_trouble_of_the_store(earlier: Store):
    """Neither ours nor another's: nobody can tell, and nothing is published beside it."""
    [name] = earlier.folders(f"{LORA}/base")
    for content in (b'{"files": {}}', b"half"):
        earlier.write(f"{LORA}/base/{name}/{MANIFEST}", content)
        with pytest.raises(Unavailable, match="is not the manifest of"):
            published(earlier)
    assert earlier.folders(f"{LORA}/base") == [name]


def test_its_checkpoint_is_read(earlier: Store, tmp_path: Path):
    """The run goes on with the step and the tensors of then."""
    checkpoints = CheckpointStore(earlier, FULL, tmp_path / "work")
    path = checkpoints.newest_of_earlier_release()

    assert path is not None
    checkpoint, tensors = checkpoints.read(path)
    assert (checkpoint.step, checkpoint.line, checkpoint.trained) == (3, 1, ())
    assert torch.equal(tensors.weights["body"], torch.arange(8.0))
    assert torch.equal(tensors.optimizer_state["body.step"], torch.tensor(3.0))
