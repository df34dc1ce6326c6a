"""The digest of each tensor: what says whether a version is bit for bit what its writer had."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ..errors import BadInput
from .cores import num_cores
from .hashing import ALGORITHM, digest_of, split_digest
from .tensorfile import Bits


def tensor_digests(tensors: Mapping[str, Bits]) -> dict[str, str]:
    """BLAKE3 of each tensor's bytes, on several cores."""
    return _digests(tensors, {})


def check_tensors(tensors: Mapping[str, Bits], wanted: Mapping[str, str], whose: str) -> None:
    """Raises BadInput, naming the first that differs, unless each tensor has its digest, and there is no other."""
    found = _digests(tensors, {name: split_digest(digest)[0] for name, digest in wanted.items()})
    whole = {name: ":".join(split_digest(digest)) for name, digest in wanted.items()}
    if wrong := sorted(name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name)):
        raise BadInput(f"{whose}: {len(wrong)} tensors are not what was published, {wrong[0]} the first; nothing was loaded")


def _digests(tensors: Mapping[str, Bits], algorithms: Mapping[str, str]) -> dict[str, str]:
    """algorithms: by tensor; of the others, ours."""

    def digest(name: str) -> str:
        return digest_of(tensors[name].words.view("u1").data, algorithms.get(name, ALGORITHM))

    largest_first = sorted(tensors, key=lambda name: -tensors[name].words.nbytes)
    with ThreadPoolExecutor(num_cores()) as pool:
        found = dict(zip(largest_first, pool.map(digest, largest_first), strict=True))
    return {name: found[name] for name in tensors}
