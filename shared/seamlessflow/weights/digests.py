"""Digests of weights: BLAKE3 (why: docs/adr/0021), and SHA-256 of what earlier releases wrote.

A digest names its algorithm: ``blake3:<64 hex digits>``. One without a name is SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from blake3 import blake3

ALGORITHM = "blake3"
"""Of what we write."""

Octets = bytes | memoryview


class Hash(Protocol):
    """What bytes pass through."""

    def update(self, data: Octets, /) -> object: ...

    def hexdigest(self) -> str: ...


_MADE_BY: Mapping[str, Callable[[], Hash]] = {ALGORITHM: blake3, "sha256": hashlib.sha256}
ALGORITHMS = tuple(_MADE_BY)
_HEX = re.compile("[0-9a-f]{64}")


def new_hash(algorithm: str = ALGORITHM) -> Hash:
    """One that nothing has passed yet."""
    return _MADE_BY[algorithm]()


def hex_of(content: Octets, algorithm: str = ALGORITHM) -> str:
    """64 hex digits."""
    made = new_hash(algorithm)
    made.update(content)
    return made.hexdigest()


def digest_of(content: Octets, algorithm: str = ALGORITHM) -> str:
    """With its algorithm's name."""
    return f"{algorithm}:{hex_of(content, algorithm)}"


def split_digest(digest: object) -> tuple[str, str]:
    """Algorithm and hex digits of a digest. Raises ValueError for what is none: the digits may name a folder."""
    name, _, digits = str(digest).rpartition(":")
    algorithm = name or "sha256"
    if not isinstance(digest, str) or algorithm not in _MADE_BY or not _HEX.fullmatch(digits):
        raise ValueError(f"the digest {digest!r}; known are {', '.join(f'{each}:<64 hex digits>' for each in ALGORITHMS)}")
    return algorithm, digits


# How many threads work on weights at a time.


MOST_THREADS = 16
"""More do not help: memory is the limit by then, and others live on the machine."""


def num_cores() -> int:
    """The cores this process may use, as a container or its starter bound it; not all that the machine has."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not there: no Linux
    return min(bound, MOST_THREADS)
