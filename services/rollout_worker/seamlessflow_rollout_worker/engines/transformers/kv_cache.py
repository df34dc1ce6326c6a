"""Keys and values of every sequence an engine holds, one row each, and the rows' token ids.

    rows 0 .. num_running-1    requests being served, always contiguous so that a pass reads slices, never gathers
    rows num_running ..        finished ones, kept until room is needed: a later prompt may start with the same tokens

Always true: a row's keys and values at position i were computed from exactly ``token_ids[:i+1]``, and rows are
shared with new requests only while the weights that computed all of them are still loaded (``forget``).
Dimensions: L layers, R rows, H key/value heads, T positions, D head size, N new tokens of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .packed_attention import Band, New, bands_of


@dataclass(slots=True)
class Row:
    """What one row of the cache holds."""

    token_ids: list[int] = field(default_factory=list)
    """Tokens whose keys and values are stored, in order."""
    is_shareable: bool = True
    """False: some of it was computed by weights that are gone."""
    used: int = 0
    """When a request last had or read it, on the cache's own clock."""

    @property
    def is_worth_keeping(self) -> bool:
        return self.is_shareable and bool(self.token_ids)


class RowCache:
    """The cache object that a transformers decoder writes to and reads from during ``forward``."""

    is_compileable = False

    def __init__(
        self, *, num_layers: int, num_rows: int, num_heads: int, max_tokens: int, head_size: int, dtype: torch.dtype
    ) -> None:
        shape = (num_layers, 2, num_rows, num_heads, max_tokens, head_size)
        # numpy's zeros are untouched pages (of up to 2 MiB), torch's are written: memory grows about as far as sequences reach.
        zeros = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
        self._store = torch.from_numpy(zeros).view(dtype).view(shape)
        self._layers = [(layer[0], layer[1]) for layer in self._store]
        self.rows = [Row() for _ in range(num_rows)]
        self._ticks = 0
        self._write: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def aim(self, news: Sequence[New]) -> tuple[Tensor, list[Band]]:
        """Say what the coming ``forward`` writes: the new tokens of rows 0, 1, ... Gives positions [1, N] and the bands."""
        rows = [row for row, new in enumerate(news) for _ in range(new.count)]
        positions = [new.start + offset for new in news for offset in range(new.count)]
        positions_N = torch.tensor(positions)
        self._write = torch.tensor(rows), positions_N
        return positions_N.unsqueeze(0), list(bands_of(news, self._store.dtype))

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by the model: store [1, H, N, D] and return all that the rows hold, [R, H, T, D]."""
        rows_N, positions_N = self._write
        stored_keys, stored_values = self._layers[layer_idx]
        stored_keys[rows_N, :, positions_N] = keys[0].transpose(0, 1)
        stored_values[rows_N, :, positions_N] = values[0].transpose(0, 1)
        return stored_keys, stored_values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Called by some models; positions are always passed explicitly, so it only has to be a number."""
        return 0

    def close_row(self, index: int, last: int) -> None:
        """A request ended: its row goes behind the last running one, which takes its place; it was used just now."""
        self.rows[index].used = self._tick()
        self._swap(index, last)

    def _swap(self, one: int, other: int) -> None:
        if one == other:
            return
        length = max(len(self.rows[one].token_ids), len(self.rows[other].token_ids))
        kept = self._store[:, :, one, :, :length].clone()
        self._store[:, :, one, :, :length] = self._store[:, :, other, :, :length]
        self._store[:, :, other, :, :length] = kept
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def open_row(self, index: int, prompt_ids: list[int]) -> int:
        """Make row ``index`` start with as much of ``prompt_ids`` as some row already holds; return how many tokens.

        ``index`` is the first row that is not running. What it held moves to the free row that was used longest ago.
        At least the last token of the prompt is always left to compute: its logits are needed.
        """
        source, shared = self.longest_shared_prefix(prompt_ids)
        if shared:
            self.rows[source].used = self._tick()
        if source != index or shared < len(self.rows[index].token_ids):
            self._move_away(index, keep=source if shared else None)
            self._copy(source, index, shared)
        self.rows[index] = Row(prompt_ids[:shared], used=self._tick())
        return shared

    def forget(self) -> None:
        """The weights changed: nothing stored so far may serve a new request. Running rows keep theirs."""
        for row in self.rows:
            row.is_shareable = False

    def longest_shared_prefix(self, prompt_ids: list[int]) -> tuple[int, int]:
        """The row that holds most of a prompt's beginning, and how many tokens of it."""
        best, best_length, sought = 0, 0, prompt_ids[:-1]
        for index, row in enumerate(self.rows):
            if row.is_shareable and len(row.token_ids) > best_length:
                length = shared_prefix_length(row.token_ids, sought, at_least=best_length)
                if length > best_length:
                    best, best_length = index, length
        return best, best_length

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def _move_away(self, index: int, keep: int | None) -> None:
        free = [other for other in range(index, len(self.rows)) if other != keep]
        oldest = min(free, key=lambda other: (self.rows[other].is_worth_keeping, self.rows[other].used, other), default=index)
        if oldest != index and self.rows[index].is_worth_keeping:
            self._copy(index, oldest, len(self.rows[index].token_ids))
            self.rows[oldest] = self.rows[index]

    def _copy(self, source: int, target: int, length: int) -> None:
        if length and source != target:
            self._store[:, :, target, :, :length] = self._store[:, :, source, :, :length]


def shared_prefix_length(one: list[int], other: list[int], *, at_least: int) -> int:
    """Length of the common prefix, by bisection over slices; 0 when it is not longer than ``at_least``."""
    low, high = at_least + 1, min(len(one), len(other))
    if high < low or one[:low] != other[:low]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
