"""Versions of a LoRA run: the base once, then adapters alone, small files that PEFT and others can read as they are.

base ─▶ numbers only? ─▶ digest ─▶ {run}/base/DIGEST/, unless it is there, by whichever digest; another's: refused
adapters ─▶ numbers only? ─▶ adapter_config.json, adapter_model.safetensors (float32), and what they belong to in the manifest
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder
from seamlessflow.weights.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterFacts, base_path, bases_path
from seamlessflow.weights.digests import ALGORITHM, new_hash, split_digest
from seamlessflow.weights.manifest import read_manifest, version_facts
from seamlessflow.weights.safetensors_file import parse_tensors, tensor_digests

from .safetensors_writer import safetensors_chunks
from .version_files import FiniteCheck

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


class AdapterVersionBuilder:
    """Makes one version after the other, each whole: of adapters every value changes in every step."""

    def __init__(self, adapter: AdapterFacts) -> None:
        self._adapter, self._finite_check = adapter, FiniteCheck(DTYPE)

    def make(
        self, weights: Mapping[str, Tensor], *, version: int, step: int, newest: int, is_last: bool = False
    ) -> AdapterFiles:
        """The files of ``version``. Blocks. Raises BadInput for adapters that must not be published, see ``FiniteCheck``."""
        self._finite_check.check(weights, f"weights version {version}")
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

    What an earlier trainer of the run put there is used, also where an earlier release named it by another algorithm's digest.
    Raises Unavailable; BadInput where the run's adapters belong to another base, or this one has values that are no numbers.
    """
    FiniteCheck(dtype).check(weights, "the base of the run's adapters")
    there = _bases_of(store, run)
    algorithms = {ALGORITHM, *(split_digest(digest)[0] for digest in there.values())}
    ours = _digests_of(safetensors_chunks(weights, dtype=dtype), algorithms)
    for digest in there.values():
        algorithm, digits = split_digest(digest)
        if digits != ours[algorithm]:
            raise BadInput(
                f"the adapters of this run belong to the base {digits[:12]}, and the model here is {ours[algorithm][:12]} (by "
                f"{algorithm}): its files have changed since the run began. Put the earlier ones back, or begin a new run"
            )
    if there:
        return min(there.items())
    digest = f"{ALGORITHM}:{ours[ALGORITHM]}"
    path = base_path(run, digest)
    facts = {"dtype": str(dtype).removeprefix("torch."), "base": None}
    # Written once and never again, and every version builds on it: a damaged one would end the run.
    publish_folder(store, path, {WEIGHTS_FILE: safetensors_chunks(weights, dtype=dtype)}, facts, read_back=(WEIGHTS_FILE,))
    return path, digest


def _bases_of(store: Store, run: str) -> dict[str, str]:
    """The digest of each base that is complete, by its folder. Raises Unavailable, also where a manifest names no base."""
    found: dict[str, str] = {}
    for name in store.folders(bases_path(run)):
        path = f"{bases_path(run)}/{name}"
        try:
            manifest = read_manifest(store, path, 0)
        except FileNotFoundError:  # its writer died, or writes still
            continue
        if manifest.adapter is not None or manifest.full is None:
            raise Unavailable(f"{path}/{MANIFEST} is not the manifest of a base; nothing was published")
        found[path] = manifest.full.digest
    return found


def _digests_of(chunks: Iterable[bytes | memoryview], algorithms: Collection[str]) -> dict[str, str]:
    """Hex digits of a file's digest, by algorithm."""
    hashes = {algorithm: new_hash(algorithm) for algorithm in algorithms}
    for chunk in chunks:
        for each in hashes.values():
            each.update(chunk)
    return {algorithm: each.hexdigest() for algorithm, each in hashes.items()}
