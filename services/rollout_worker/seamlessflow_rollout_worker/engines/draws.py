"""Where the randomness of sampling comes from: one uniform number per token."""

from __future__ import annotations

import hashlib
import random


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but ``seed`` and ``position`` (index of the token in its sequence).

    So a generation interrupted at any token and continued by another worker makes the draws it would have made.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


class Draws:
    """The draws of one request: from its seed, or from the engine's stream where it has none."""

    def __init__(self, seed: int | None, engine_stream: random.Random) -> None:
        self._seed = seed
        self._engine_stream = engine_stream

    def at(self, position: int) -> float:
        """The uniform number that decides the token at ``position``."""
        return self._engine_stream.random() if self._seed is None else uniform(self._seed, position)
