"""The digest of each tensor: what says whether a version is bit for bit what its writer had."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ..errors import BadInput
from .cores import num_cores
from .tensorfile import Bits


def tensor_digests(tensors: Mapping[str, Bits]) -> dict[str, str]:
    """sha256 of each tensor's bytes, on several cores."""
    largest_first = sorted(tensors, key=lambda name: -tensors[name].words.nbytes)
    with ThreadPoolExecutor(num_cores()) as pool:
        found = dict(zip(largest_first, pool.map(lambda name: _digest(tensors[name]), largest_first), strict=True))
    return {name: found[name] for name in tensors}


def check_tensors(tensors: Mapping[str, Bits], wanted: Mapping[str, str], whose: str) -> None:
    """Raises BadInput, naming the first that differs, unless each tensor has its digest, and there is no other."""
    found = tensor_digests(tensors)
    if wrong := sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)):
        raise BadInput(f"{whose}: {len(wrong)} tensors are not what was published, {wrong[0]} the first; nothing was loaded")


def _digest(tensor: Bits) -> str:
    return hashlib.sha256(tensor.words.view("u1").data).hexdigest()
