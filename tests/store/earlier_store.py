"""A store as the release before BLAKE3 wrote it (by its code, commit 2d644ce): the bytes are in ``earlier/``, the numbers here.

full/weights/00000000-5f0c   a full version, with digests of ranges of 128 bytes
full/weights/00000001-5f0c   the changes to it
full/model, full/checkpoints config and tokenizer; a trainer's state after step 3
lora/base/SHA256             a base, named by its digest
lora/weights/00000000-5f0c   an adapter to it
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import weights_path
from tests.store.weights_builders import Tensors, tensor

EARLIER = Path(__file__).parent / "earlier"
FULL, LORA = "full", "lora"
LAYER = "base_model.model.body"


def earlier_store(folder: Path) -> Store:
    """A copy of it below ``folder``."""
    shutil.copytree(EARLIER, folder / "store")
    return Store(f"file://{folder}/store")


def path_of(run: str, version: int) -> str:
    return weights_path(run, version, "5f0c")


def tensors_of(version: int) -> Tensors:
    """Of version 0 or 1 of the run with full versions."""
    places = np.arange(64)
    return {
        "body": tensor("BF16", 0x3E80 + places + version * (places % 5 == 0), (8, 8)),
        "norm": tensor("F32", 0x3F800000 + 7 * np.arange(4) + version),
    }


BASE = {"body.weight": np.arange(24, dtype=np.float32).reshape(4, 6) / 8, "norm.weight": np.ones(6, np.float32)}
"""Of the LoRA run, served in bfloat16, which has all of these numbers."""
MERGED = BASE["body.weight"] + 2 * np.array([[0.0], [0.5], [1.0], [-1.0]], np.float32) @ np.arange(6)[None] / 4
"""``body.weight`` of its version 0."""
