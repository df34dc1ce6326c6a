"""What a timed engine says: tokens drawn from one distribution, whatever came before. Vectorised, exact, seeded. Pure.

Dimensions: V words of the law, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.scripted_engine import read_logits

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class Law:
    """``words``: ids it draws. All are equally likely until ``overwrite``."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words: Ids = np.asarray(words, dtype=np.int64)
        self._logits_V: Floats = np.zeros(len(words))
        self._cuts: dict[tuple[float, float], tuple[Floats, Ids]] = {}

    def read(self, file: Path) -> Floats | None:
        """The logits of a version, [V]; None: it has none, and whatever else it holds means nothing. Raises BadInput."""
        given = read_logits(file)
        if given is not None and given.shape != self._logits_V.shape:
            raise BadInput(f"logits: expected {len(self._words)} numbers, got {given.shape}. Nothing was copied.")
        return given

    def overwrite(self, logits_V: Floats) -> None:
        """Take over what ``read`` read."""
        self._logits_V = logits_V
        self._cuts.clear()

    def logprobs(self, temperature: float) -> Floats:
        """[V] after temperature; 0.0 counts as 1."""
        scaled = self._logits_V / (temperature or 1.0)
        shifted = scaled - scaled.max()
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))

    def draw(self, seed: int, first: int, count: int, *, temperature: float, top_p: float) -> tuple[list[int], list[float]]:
        """Tokens for ``count`` positions from ``first`` on, and their logprobs. Depends on nothing but what is given here."""
        logprobs_V = self.logprobs(temperature)
        if temperature == 0.0:
            picks_N = np.full(count, int(logprobs_V.argmax()))
        else:
            mass_V, order_V = self._cut(temperature, top_p)
            targets_N = _uniforms(seed, first, count) * mass_V[-1]
            picks_N = order_V[np.minimum(np.searchsorted(mass_V, targets_N, side="right"), len(order_V) - 1)]
        return self._words[picks_N].tolist(), logprobs_V[picks_N].tolist()

    def _cut(self, temperature: float, top_p: float) -> tuple[Floats, Ids]:
        """Cumulated mass of the nucleus by rank, and the words in that order."""
        key = (temperature, top_p)
        if key not in self._cuts:
            probs_V = np.exp(self.logprobs(temperature))
            order_V = np.argsort(-probs_V, kind="stable")
            mass_V = np.cumsum(probs_V[order_V])
            kept = int(np.searchsorted(mass_V, top_p, side="left")) + 1
            self._cuts[key] = (mass_V[:kept], order_V[:kept])
        return self._cuts[key]


def _uniforms(seed: int, first: int, count: int) -> Floats:
    """Numbers in [0, 1) that depend on seed and position alone (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.uint64(seed % (1 << 64)) * np.uint64(0x9E3779B97F4A7C15) + np.arange(first, first + count, dtype=np.uint64)
        x = x * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)).astype(np.float64) / float(1 << 53))
