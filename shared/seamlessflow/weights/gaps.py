"""Where values changed, in few bits: sorted positions as Rice-coded gaps, or a bitmap where that is smaller.

A gap g (elements skipped since the change before) is split at a width k: its k low bits go into k bit planes, its high
part g >> k into a row of zeros that a one ends. For changes that fall independently this is within a few per cent of the
entropy, so no general compressor comes behind it; every step is a numpy call over the whole chunk.

``coding`` names the form: ALL, BITMAP, or RICE + k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput

ALL, BITMAP, RICE = 0, 1, 2
LARGEST_WIDTH = 24
"""Bits of the largest gap's low part; chunks have fewer elements than 2 ** 24."""

Bytes = NDArray[np.uint8]
Positions = NDArray[np.intp]


def encode_positions(changed: NDArray[np.bool_], positions: Positions) -> tuple[int, Bytes]:
    """The smallest form of the positions where ``changed`` is True; returns its coding and its bytes."""
    num_values, num_changed = len(changed), len(positions)
    if num_changed == num_values:
        return ALL, np.empty(0, np.uint8)
    if not num_changed:
        return RICE, np.empty(0, np.uint8)
    gaps = np.diff(positions, prepend=-1).astype(np.uint32) - np.uint32(1)
    width, num_bytes = _best_width(gaps, num_values)
    if (num_values + 7) // 8 <= num_bytes:
        return BITMAP, np.packbits(changed)
    low = pack_planes(gaps, width)
    ends = np.cumsum((gaps >> np.uint32(width)) + np.uint32(1), dtype=np.intp)
    unary = np.zeros(int(ends[-1]), np.uint8)
    unary[ends - 1] = 1
    return RICE + width, np.concatenate([low, np.packbits(unary)])


def decode_positions(coding: int, content: Bytes, *, num_values: int, num_changed: int) -> Positions:
    """The positions again, ascending. Raises BadInput when the bytes do not hold that many within ``num_values``."""
    _expect(num_changed <= num_values, f"{num_changed} changes among {num_values} values")
    if coding == ALL:
        positions = np.arange(num_values, dtype=np.intp)
    elif coding == BITMAP:
        _expect(len(content) == (num_values + 7) // 8, "a bitmap has another length")
        positions = np.flatnonzero(np.unpackbits(content, count=num_values).view(np.bool_))
    else:
        positions = _decode_rice(coding - RICE, content, num_changed)
    _expect(len(positions) == num_changed, f"{len(positions)} positions where {num_changed} were announced")
    _expect(num_changed == 0 or int(positions[-1]) < num_values, "a position lies beyond its tensor")
    return positions


def pack_planes(numbers: NDArray[np.unsignedinteger[Any]], width: int) -> Bytes:
    """The ``width`` low bits of each number, one plane of packed bits after the other."""
    one = numbers.dtype.type(1)
    planes = [np.packbits(((numbers >> numbers.dtype.type(bit)) & one).astype(np.uint8)) for bit in range(width)]
    return np.concatenate(planes) if planes else np.empty(0, np.uint8)


def unpack_planes(content: Bytes, width: int, count: int) -> NDArray[np.uint32]:
    """The numbers that ``pack_planes`` packed; ``content`` has exactly their bytes."""
    numbers = np.zeros(count, np.uint32)
    for bit, plane in enumerate(content.reshape(width, -1) if width else ()):
        numbers |= np.unpackbits(plane, count=count).astype(np.uint32) << np.uint32(bit)
    return numbers


def _decode_rice(width: int, content: Bytes, num_changed: int) -> Positions:
    low_bytes = width * ((num_changed + 7) // 8)
    _expect(0 <= width <= LARGEST_WIDTH and low_bytes <= len(content), "gaps are cut short")
    low = unpack_planes(content[:low_bytes], width, num_changed)
    ends = np.flatnonzero(np.unpackbits(content[low_bytes:]).view(np.bool_))
    _expect(len(ends) == num_changed, f"{len(ends)} gaps where {num_changed} were announced")
    # The sum of the first i high parts is where the i-th one stands, less the ones before it.
    high = np.diff(ends, prepend=-1) - 1
    return np.cumsum((high << width) + low.astype(np.intp) + 1) - 1


def _best_width(gaps: NDArray[np.uint32], num_values: int) -> tuple[int, int]:
    """The width with the fewest bytes, and how many: near log2 of the mean gap times ln 2, where geometric gaps want it."""
    mean = num_values / max(1, len(gaps))
    guess = max(0, int(np.log2(max(1.0, 0.69 * mean))))
    sizes = {
        width: width * ((len(gaps) + 7) // 8) + (len(gaps) + int((gaps >> np.uint32(width)).sum()) + 7) // 8
        for width in (guess, guess + 1)
    }
    best = min(sizes, key=sizes.__getitem__)
    return best, sizes[best]


def _expect(is_so: bool, complaint: str) -> None:
    if not is_so:
        raise BadInput(f"a weights delta is damaged: {complaint}; nothing of it may be used")
