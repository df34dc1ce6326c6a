"""A line of versions, full ones and changes in turn, that tests of weights publish and fetch."""

from __future__ import annotations

import itertools

import numpy as np

from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights.delta import encode
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import tensor_digests
from tests.store.weights_builders import Tensors, safetensors, stepped, tensor

RUN = "demo"
FULL_EVERY = 3
"""Versions 0, 3 and 6 are full; all but 0 have a delta."""
NEWEST = 7


def line_of_versions() -> list[Tensors]:
    stream = np.random.default_rng(0)
    first = {
        "body": tensor("BF16", 0x3E80 + stream.integers(0, 128, 3000), (30, 100)),
        "norm": tensor("F32", 0x3F800000 + stream.integers(0, 99, 40)),
        "ids": tensor("I64", range(10)),
    }
    return list(
        itertools.accumulate(range(NEWEST), lambda now, seed: stepped(now, share=0.03, farthest=2, seed=seed), initial=first)
    )


LINE = line_of_versions()


def publish(store: Store, version: int, tensors: Tensors, before: Tensors | None, *, is_full: bool) -> str:
    """Its folder."""
    files = {WEIGHTS_FILE: safetensors(tensors)} if is_full else {}
    if before is not None:
        files[DELTA_FILE] = encode(before, tensors)
    base = None if before is None else version - 1
    facts = version_facts(weights_version=version, step=version, dtype="bfloat16", base=base, tensors=tensor_digests(tensors))
    publish_folder(store, weights_path(RUN, version), files, facts)
    return weights_path(RUN, version)
