"""Modelled time and modelled tokens beside real ones: everything of a timed run that is scaled, in one place. Pure.

A timed run is real in all but the devices: what a device would take ``seconds`` for takes ``seconds / time_scale`` here, and
one token of the data plane stands for ``token_scale`` tokens of the model, so that two cores can carry a fleet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LENGTH_BITS = 24
_SEED_BITS = 53
"""Seeds stay exact in every language's JSON."""


@dataclass(frozen=True, slots=True)
class Scale:
    """``time_scale``: modelled seconds in one real second. ``token_scale``: modelled tokens in one token of the data plane."""

    time_scale: float = 1.0
    token_scale: int = 1

    def real_seconds(self, modelled: float) -> float:
        return modelled / self.time_scale

    def modelled_seconds(self, real: float) -> float:
        return real * self.time_scale

    def data_tokens(self, modelled: int) -> int:
        """Rounded up: nothing that was to be sampled or read is less than one token."""
        return -(-modelled // self.token_scale)

    def modelled_tokens(self, data: int) -> int:
        return data * self.token_scale


def seed_with_length(identity: int, tokens: int) -> int:
    """A seed that tells the engine how many tokens (of the data plane) this generation has, whoever continues it.

    Raises ValueError for more than ``2**LENGTH_BITS - 1``.
    """
    if not 1 <= tokens < 1 << LENGTH_BITS:
        raise ValueError(f"expected 1..{(1 << LENGTH_BITS) - 1} tokens, got {tokens}")
    return (identity % (1 << (_SEED_BITS - LENGTH_BITS)) << LENGTH_BITS) | tokens


def length_in(seed: int) -> int:
    """The tokens that ``seed_with_length`` put there."""
    return seed % (1 << LENGTH_BITS)


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie; nan of none."""
    if not values:
        return math.nan
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
