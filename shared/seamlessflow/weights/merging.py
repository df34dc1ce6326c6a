"""A base and an adapter to the weights that an engine loads: weight + scale * B A, rounded once.

Sums and products are made in float64, where they are exact or nearly so, and rounded to the dtype that the weight has. So
the result does not depend on the order in which a library adds, nor on what was merged before: it starts from the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..errors import BadInput
from .cores import num_cores
from .floats import Numbers, from_numbers, to_numbers
from .pairing import Pair
from .steps import Words
from .tensorfile import Bits

CHUNK_VALUES = 1 << 15
"""Values merged in one go: what is in between stays in a core's own cache."""
CHUNK_PRODUCTS = 1 << 19
"""Multiplications in one go, at most. From twice as many on OpenBLAS starts threads of its own beside ours, which wait for each
other by spinning: measured on a busy machine, twenty times the processor time."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of a weight, and what is added to it."""

    dtype: str
    target: Words
    """[rows, columns], changed in place."""
    scaled_B: Numbers
    """[rows, rank]"""
    A: Numbers
    """[rank, columns]"""


def merge(pairs: Sequence[Pair], scale: float, tensors: Mapping[str, Bits], whose: str) -> None:
    """Change the base's ``tensors`` in place, on several threads. ``pairs`` fit them (``pairs_of``).

    Raises BadInput, naming the tensor, where a value gets too large for its dtype or is no number; the tensors are neither
    base nor version then, and must not be used.
    """
    with ThreadPoolExecutor(num_cores()) as pool:
        for pair in pairs:  # one at a time: the pool takes all blocks at once, and each has a part of float64 copies
            if not all(pool.map(_merge_block, _blocks(pair, scale, tensors))):
                raise BadInput(
                    f"{whose}: with its adapter tensor {pair.weight} has values that are NaN or infinite; nothing is loaded"
                )


def _blocks(pair: Pair, scale: float, tensors: Mapping[str, Bits]) -> Iterator[_Block]:
    weight = tensors[pair.weight]
    num_rows, num_columns = weight.shape
    target = weight.words.reshape(num_rows, num_columns)
    a_RI = to_numbers(pair.smaller.words, pair.smaller.dtype).reshape(pair.smaller.shape)
    b_OR = scale * to_numbers(pair.larger.words, pair.larger.dtype).reshape(pair.larger.shape)
    size = max(1, min(CHUNK_VALUES, CHUNK_PRODUCTS // len(a_RI)))
    width = max(1, min(num_columns, size))
    height = max(1, size // width)
    for row in range(0, num_rows, height):
        rows = slice(row, row + height)
        for column in range(0, num_columns, width):
            columns = slice(column, column + width)
            yield _Block(weight.dtype, target[rows, columns], b_OR[rows], a_RI[:, columns])


def _merge_block(block: _Block) -> bool:
    """Whether all values are finite: only then they are changed."""
    with np.errstate(invalid="ignore", over="ignore"):  # looked for right here
        merged = block.scaled_B @ block.A
        merged += to_numbers(block.target, block.dtype)
        farthest = np.maximum(merged.max(initial=0.0), -merged.min(initial=0.0)).reshape(1)  # NaN if any value is
    # Rounding keeps the order: where this one is finite in the weight's dtype, all are.
    if not np.isfinite(farthest).all() or not np.isfinite(to_numbers(from_numbers(farthest, block.dtype), block.dtype)).all():
        return False
    block.target[...] = from_numbers(merged, block.dtype)
    return True
