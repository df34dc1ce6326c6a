"""A base, adapters to it, and versions of them in a store: what tests of adapters share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import publish_folder, weights_path
from seamlessflow.weights.adapters import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    AdapterFacts,
    adapter_config,
    base_path,
    merge,
    pairs_of,
    scale_of,
)
from seamlessflow.weights.digests import digest_of
from seamlessflow.weights.manifest import version_facts
from seamlessflow.weights.safetensors_file import tensor_digests
from tests.store.weights_builders import Tensors, copy, safetensors, tensor

RUN, RANK = "demo", 2
LAYER = "base_model.model.body"
CONFIG = adapter_config(rank=RANK, alpha=4, target_modules=["body"], base_name="m")


def floats(*shape: int, seed: int) -> Any:
    words = np.random.default_rng(seed).standard_normal(shape, np.float32).view(np.uint32).reshape(-1)
    return tensor("F32", words, shape)


BASE: Tensors = {
    "body.weight": tensor("BF16", 0x3E80 + np.random.default_rng(0).integers(0, 128, 600), (20, 30)),
    "norm.weight": tensor("BF16", np.full(30, 0x3F80)),
}
BASE_FILE = safetensors(BASE)
DIGEST = digest_of(BASE_FILE)
FACTS = AdapterFacts(base_path(RUN, DIGEST), DIGEST, CONFIG)


def adapter(version: int, rank: int = RANK) -> Tensors:
    return {
        f"{LAYER}.lora_A.weight": floats(rank, 30, seed=2 * version),
        f"{LAYER}.lora_B.weight": floats(20, rank, seed=2 * version + 1),
    }


def publish(
    store: Store, version: int, tensors: Tensors, facts: AdapterFacts = FACTS, *, listed: Tensors | None = None
) -> None:
    files = {ADAPTER_CONFIG_FILE: json.dumps(facts.config).encode(), ADAPTER_FILE: safetensors(tensors)}
    digests = tensor_digests(listed or tensors)
    about = version_facts(weights_version=version, step=version, dtype="float32", base=None, tensors=digests, adapter=facts)
    publish_folder(store, weights_path(RUN, version), files, about)


def expected(version: int) -> Tensors:
    target = copy(BASE)
    merge(pairs_of(adapter(version), FACTS, target, "it"), scale_of(FACTS, "it"), target, "it")
    return target
