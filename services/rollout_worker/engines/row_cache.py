"""Keys and values of every sequence an engine holds, one row each, and the rows' token ids.

    rows 0 .. num_active-1     requests being decoded, always contiguous so that a step reads slices, never gathers
    rows num_active ..         finished ones, kept until overwritten: a later prompt may start with the same tokens

Always true: a row's keys and values at position i were computed from exactly ``token_ids[:i+1]``, and rows are
shared with new requests only while the weights that computed all of them are still loaded (``forget``).
Dimensions: L layers, R rows, H key/value heads, T positions, D head size, Q new tokens per row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Row:
    """What one row of the cache holds."""

    token_ids: list[int] = field(default_factory=list)
    """Tokens whose keys and values are stored, in order."""
    is_shareable: bool = True
    """False: some of it was computed by weights that are gone."""


class RowCache:
    """The cache object that a transformers decoder writes to and reads from during ``forward``."""

    is_compileable = False

    def __init__(
        self, *, num_layers: int, num_rows: int, num_heads: int, max_tokens: int, head_size: int, dtype: torch.dtype
    ) -> None:
        # zeros come from untouched pages: memory is used as far as sequences really reach.
        self._store = torch.zeros(num_layers, 2, num_rows, num_heads, max_tokens, head_size, dtype=dtype)
        self._layers = [(layer[0], layer[1]) for layer in self._store]
        self.rows = [Row() for _ in range(num_rows)]
        self._window = slice(0, 0)
        self._span = 0
        self._write: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self._picked: Tensor | None = None

    def aim(self, window: slice, positions_BQ: Tensor, valid_BQ: Tensor | None) -> Tensor:
        """Say where the coming ``forward`` writes: rows ``window``, these positions, only where valid.

        valid_BQ None: everything is. Returns the additive attention mask [B, 1, Q, span] in the cache's dtype, with
        which every token sees its own row up to itself.
        """
        rows_BQ = torch.arange(window.start, window.stop).unsqueeze(1).expand_as(positions_BQ)
        self._picked = valid_BQ
        if valid_BQ is None:
            self._write = rows_BQ.reshape(-1), positions_BQ.reshape(-1)
        else:
            self._write = rows_BQ[valid_BQ], positions_BQ[valid_BQ]
        self._window, self._span = window, int(positions_BQ.max()) + 1
        hidden = torch.arange(self._span) > positions_BQ[:, None, :, None]
        dtype = self._store.dtype
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by the model: store [B, H, Q, D] and return all that the rows hold, [B, H, span, D]."""
        stored_keys, stored_values = self._layers[layer_idx]
        rows, positions = self._write
        for store, new in ((stored_keys, keys), (stored_values, values)):
            new_BQHD = new.transpose(1, 2)
            flat = new_BQHD.flatten(0, 1) if self._picked is None else new_BQHD[self._picked]
            store[rows, :, positions] = flat
        return stored_keys[self._window, :, : self._span], stored_values[self._window, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Called by some models; positions are always passed explicitly, so it only has to be a number."""
        return 0

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        if one == other:
            return
        length = max(len(self.rows[one].token_ids), len(self.rows[other].token_ids))
        kept = self._store[:, :, one, :, :length].clone()
        self._store[:, :, one, :, :length] = self._store[:, :, other, :, :length]
        self._store[:, :, other, :, :length] = kept
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def open_row(self, index: int, prompt_ids: list[int]) -> int:
        """Make row ``index`` start with as much of ``prompt_ids`` as some row already holds; return how many tokens.

        At least the last token of the prompt is always left to compute: its logits are needed.
        """
        source, shared = self._longest_shared_prefix(prompt_ids)
        if source != index and shared:
            self._store[:, :, index, :, :shared] = self._store[:, :, source, :, :shared]
        self.rows[index] = Row(prompt_ids[:shared])
        return shared

    def forget(self) -> None:
        """The weights changed: nothing stored so far may serve a new request. Running rows keep theirs."""
        for row in self.rows:
            row.is_shareable = False

    def _longest_shared_prefix(self, prompt_ids: list[int]) -> tuple[int, int]:
        best, best_length = 0, 0
        for index, row in enumerate(self.rows):
            if row.is_shareable and len(row.token_ids) > best_length:
                length = _shared_prefix_length(row.token_ids, prompt_ids[:-1], at_least=best_length)
                if length > best_length:
                    best, best_length = index, length
        return best, best_length


def _shared_prefix_length(one: list[int], other: list[int], *, at_least: int) -> int:
    """Length of the common prefix, by bisection over slices; 0 when it is not longer than ``at_least``."""
    low, high = at_least + 1, min(len(one), len(other))
    if high < low or one[:low] != other[:low]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
