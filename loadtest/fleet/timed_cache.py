"""Which prefixes an engine has computed: blocks of tokens under chained hashes, the ones not used longest forgotten. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 8
"""Of the data plane. A prefix is found in whole blocks, as in vLLM (16 tokens there)."""


class PrefixCache:
    """``max_tokens``: of the data plane."""

    def __init__(self, max_tokens: int) -> None:
        self._max_blocks = max_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def num_known(self, ids: Sequence[int]) -> int:
        """Tokens at the beginning that need not be computed again. One is always computed: it predicts the next."""
        known = 0
        for chained in _chain(ids):
            if chained not in self._blocks:
                break
            self._blocks.move_to_end(chained)
            known += BLOCK_TOKENS
        return min(known, len(ids) - 1)

    def put(self, ids: Sequence[int]) -> None:
        """All whole blocks of a sequence were computed here."""
        for chained in _chain(ids):
            self._blocks[chained] = None
            self._blocks.move_to_end(chained)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()


def _chain(ids: Sequence[int]) -> list[int]:
    """A hash for each whole block and everything before it."""
    packed, width = array("i", ids).tobytes(), 4 * BLOCK_TOKENS
    chained, hashes = 0, list[int]()
    for at in range(0, len(packed) - width + 1, width):
        chained = hash((chained, packed[at : at + width]))
        hashes.append(chained)
    return hashes
