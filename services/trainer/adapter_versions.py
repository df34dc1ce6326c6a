"""Versions of a LoRA run: the base once, then adapters alone, small files that PEFT and others can read as they are.

base ─▶ numbers only? ─▶ digest ─▶ {run}/base/DIGEST/, unless it is there; another one there: another model, refused
adapters ─▶ numbers only? ─▶ adapter_config.json, adapter_model.safetensors (float32), and what they belong to in the manifest
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seamlessflow.blobs import Store
from seamlessflow.errors import BadInput
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder
from seamlessflow.weights.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterFacts, base_path
from seamlessflow.weights.digests import tensor_digests
from seamlessflow.weights.hashing import ALGORITHM, new_hash
from seamlessflow.weights.manifests import version_facts
from seamlessflow.weights.tensorfile import parse_tensors

from .numbers_only import NumbersOnly
from .tensorfiles import safetensors_chunks

DTYPE = torch.float32
"""Of adapters: what the trainer has, so that workers round once, when they have merged."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """What ``publish_folder`` writes, as often as it has to."""

    facts: Mapping[str, object]
    config: bytes
    adapter: bytes

    def contents(self) -> dict[str, bytes | Iterable[bytes | memoryview]]:
        """The files by name."""
        return {ADAPTER_CONFIG_FILE: self.config, ADAPTER_FILE: self.adapter}


class AdapterMaker:
    """Makes one version after the other, each whole: of adapters every value changes in every step."""

    def __init__(self, adapter: AdapterFacts) -> None:
        self._adapter, self._numbers_only = adapter, NumbersOnly(DTYPE)

    def make(
        self, weights: Mapping[str, Tensor], *, version: int, step: int, newest: int, is_last: bool = False
    ) -> AdapterFiles:
        """The files of ``version``. Blocks. Raises BadInput for adapters that must not be published, see ``NumbersOnly``."""
        self._numbers_only.check(weights, f"weights version {version}")
        content = b"".join(safetensors_chunks(weights, dtype=DTYPE))
        digests = tensor_digests(parse_tensors(np.frombuffer(content, np.uint8), ADAPTER_FILE)[0])
        facts = version_facts(
            weights_version=version, step=step, dtype="float32", base=None, tensors=digests, adapter=self._adapter
        )
        return AdapterFiles(facts, json.dumps(self._adapter.config, indent=2).encode(), content)

    def published(self, version: int, path: str) -> None:
        """No version builds on another."""


def publish_base(store: Store, run: str, weights: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[str, str]:
    """Have the base in the store, in the served dtype; returns its folder below the store and its file's digest. Blocks.

    Raises Unavailable; BadInput where the run's adapters belong to another base, or this one has values that are no numbers.
    """
    NumbersOnly(dtype).check(weights, "the base of the run's adapters")
    passed = new_hash()
    for chunk in safetensors_chunks(weights, dtype=dtype):
        passed.update(chunk)
    digest = f"{ALGORITHM}:{passed.hexdigest()}"
    path = base_path(run, digest)
    _refuse_others(store, path)
    if not store.exists(f"{path}/{MANIFEST}"):
        facts = {"dtype": str(dtype).removeprefix("torch."), "base": None}
        # Written once and never again, and every version builds on it: a damaged one would end the run.
        publish_folder(store, path, {WEIGHTS_FILE: safetensors_chunks(weights, dtype=dtype)}, facts, read_back=(WEIGHTS_FILE,))
    return path, digest


def _refuse_others(store: Store, path: str) -> None:
    parent, ours = path.rsplit("/", 1)
    for name in store.folders(parent):
        if name != ours and store.exists(f"{parent}/{name}/{MANIFEST}"):
            raise BadInput(
                f"the adapters of this run belong to the base {name[:12]}, and the model here is {ours[:12]}: its files have "
                "changed since the run began. Put the earlier ones back, or begin a new run"
            )
