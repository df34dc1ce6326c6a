"""Attention of a pass whose tokens stand in one line: every row's new tokens, one row after the other.

All other layers see a line of N tokens and need no padding, whatever a row brings: one token while it decodes, hundreds
while its prompt is prefilled. Attention alone goes by rows, in *bands* of neighbouring rows that bring alike:

    line    a b c d d d d d e e e      rows a b c: one token each, one band without padding
    bands   1 1 1|5        |3          rows d e: padded to the longest of them, for this product only

Dimensions: B rows of a band, Q tokens of its longest row, n tokens of the band, H heads, D head size, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

NAME = "seamlessflow_rows"
"""Under this name transformers knows ``row_attention``, once ``register`` was called."""


@dataclass(frozen=True, slots=True)
class New:
    """What one row brings: ``count`` tokens (0: it waits), the first of them at position ``start``."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Band:
    """Neighbouring rows that go through attention together."""

    rows: slice
    line: slice
    """Their tokens in the line."""
    shape: tuple[int, int]
    """(B, Q)."""
    span: int
    """Positions that the longest of them holds after the pass."""
    picks_n: Tensor | None
    """Where their tokens are in B x Q; None: everywhere, nothing is padded."""
    mask_B1QT: Tensor
    """Additive: every token sees its own row up to itself."""


def bands_of(news: Sequence[New], dtype: torch.dtype) -> Iterator[Band]:
    """Cut rows 0, 1, ... into bands; ``dtype`` is that of the masks."""
    begin = 0
    for _, group in groupby(enumerate(news), key=lambda item: min(item[1].count, 2)):
        rows = list(group)
        count = sum(new.count for _, new in rows)
        if count:
            yield _band(rows[0][0], [new for _, new in rows], slice(begin, begin + count), dtype)
        begin += count


def _band(first_row: int, news: list[New], line: slice, dtype: torch.dtype) -> Band:
    longest, span = max(new.count for new in news), max(new.start + new.count for new in news)
    offsets_Q = torch.arange(longest)
    counts_B1 = torch.tensor([[new.count] for new in news])
    positions_BQ = torch.tensor([[new.start] for new in news]) + offsets_Q
    is_new_BQ = offsets_Q < counts_B1
    hidden_B1QT = torch.arange(span) > positions_BQ[:, None, :, None]
    mask = torch.zeros(hidden_B1QT.shape, dtype=dtype).masked_fill_(hidden_B1QT, torch.finfo(dtype).min)
    picks = None if bool(is_new_BQ.all()) else is_new_BQ.flatten().nonzero().flatten()
    return Band(slice(first_row, first_row + len(news)), line, (len(news), longest), span, picks, mask)


def row_attention(
    module: torch.nn.Module,
    query_1HND: Tensor,
    keys_RHTD: Tensor,
    values_RHTD: Tensor,
    attention_mask: Tensor | None,
    *,
    bands: Sequence[Band],
    **settings: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it in every layer; keys and values are all that the cache's rows hold. Gives [1, N, H, D]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query_NHD = query_1HND[0].transpose(0, 1)
    parts = []
    for band in bands:
        flat = query_NHD[band.line]
        if band.picks_n is not None:
            padded = flat.new_zeros(band.shape[0] * band.shape[1], *flat.shape[1:])
            padded[band.picks_n] = flat
            flat = padded
        query_BHQD = flat.view(*band.shape, *flat.shape[1:]).transpose(1, 2)
        keys, values = keys_RHTD[band.rows, :, : band.span], values_RHTD[band.rows, :, : band.span]
        seen_BQHD, _ = sdpa_attention_forward(module, query_BHQD, keys, values, band.mask_B1QT, **settings)
        seen = seen_BQHD.flatten(0, 1)
        parts.append(seen if band.picks_n is None else seen[band.picks_n])
    return torch.cat(parts).unsqueeze(0), None


def register() -> None:
    """Make the name known to transformers. Without a mask function of its own it is given none, and needs none."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, row_attention)
