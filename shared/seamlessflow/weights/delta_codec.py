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

from seamlessflow.errors import BadInput

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


# By how much values changed, in few bits: most floats move to the neighbour they can just be told apart from.
#
# The bit patterns of a float's neighbours differ by one, so a change is a difference of patterns read as integers ("step").
# A plane says which steps are +1 or -1, a plane the signs of those; the others are numbers of ``width`` bits, and what does
# not fit even there follows as it is. Nothing is computed with floats: NaN, infinities and -0.0 are patterns as all others.
#
# ``coding`` names the form: RAW (the new patterns as they are), or the width.


RAW = 0
WIDTHS = (3, 5, 8, 10, 12, 16)
"""Those below the width of a value are tried."""

Words = NDArray[np.unsignedinteger[Any]]


def encode_values(old: Words, new: Words) -> tuple[int, Bytes]:
    """The smallest form of ``new``, given ``old``; both [num_changed] of one dtype, equal nowhere."""
    folded = _fold(new - old)
    is_one = folded <= 1
    ones, rest = folded[is_one], folded[~is_one]
    sizes = {RAW: new.nbytes}
    for width in WIDTHS:
        if width < 8 * new.itemsize:
            num_beyond = int(np.count_nonzero(rest - 2 >= _top(width)))
            sizes[width] = _planes(len(old)) + _planes(len(ones)) + width * _planes(len(rest)) + num_beyond * new.itemsize
    coding = min(sizes, key=sizes.__getitem__)
    if coding == RAW:
        return RAW, new.view(np.uint8)
    symbols = np.minimum(rest - folded.dtype.type(2), folded.dtype.type(_top(coding)))
    beyond = new[~is_one][symbols == _top(coding)]
    parts = [np.packbits(is_one), np.packbits(ones.view(np.uint8) if ones.itemsize == 1 else ones.astype(np.uint8))]
    return coding, np.concatenate([*parts, pack_planes(symbols, coding), np.ascontiguousarray(beyond).view(np.uint8)])


def decode_values(coding: int, content: Bytes, old: Words) -> Words:
    """The new patterns. Raises BadInput when the bytes do not hold one for each old one."""
    reader = _Reader(content)
    if coding == RAW:
        new = reader.take(old.nbytes).view(old.dtype)
    else:
        if coding not in WIDTHS or coding >= 8 * old.itemsize:
            raise BadInput(f"a weights delta has values of coding {coding}, which this version does not know; it is not used")
        new = _decode_steps(coding, reader, old)
    reader.expect_end()
    return new


def _decode_steps(width: int, reader: _Reader, old: Words) -> Words:
    count = len(old)
    is_one = np.unpackbits(reader.take(_planes(count)), count=count).view(np.bool_)
    num_ones = int(np.count_nonzero(is_one))
    num_rest = count - num_ones
    signs = np.unpackbits(reader.take(_planes(num_ones)), count=num_ones)
    folded = np.empty(count, old.dtype)
    folded[is_one] = signs
    if not num_rest:
        return old + _unfold(folded)
    symbols = unpack_planes(reader.take(width * _planes(num_rest)), width, num_rest)
    at_rest = np.flatnonzero(~is_one)
    folded[at_rest] = symbols.astype(old.dtype) + old.dtype.type(2)
    new: Words = old + _unfold(folded)
    at_beyond = at_rest[symbols == _top(width)]
    new[at_beyond] = reader.take(len(at_beyond) * old.itemsize).view(old.dtype)
    return new


class _Reader:
    """Bytes from front to back. Raises BadInput at their end."""

    def __init__(self, content: Bytes) -> None:
        self._content, self._at = content, 0

    def take(self, num_bytes: int) -> Bytes:
        taken = self._content[self._at : self._at + num_bytes]
        if len(taken) != num_bytes:
            raise BadInput("a weights delta is damaged: its values are cut short; nothing of it may be used")
        self._at += num_bytes
        # A copy where numpy could not look at it as wider numbers: parts follow each other without padding.
        return taken.copy() if taken.ctypes.data % 8 else taken

    def expect_end(self) -> None:
        if self._at != len(self._content):
            raise BadInput("a weights delta is damaged: bytes are left over; nothing of it may be used")


def _fold(difference: Words) -> Words:
    """-1, +1, -2, +2 … as 0, 1, 2, 3 …: small either way. ``difference`` is never 0 and wraps around, as its dtype does."""
    signed = difference.view(np.dtype(f"i{difference.itemsize}"))
    bits = 8 * difference.itemsize
    zigzag: Words = ((signed << 1) ^ (signed >> (bits - 1))).view(difference.dtype)  # 0, 1, 2 … for 0, -1, +1 …
    zigzag -= difference.dtype.type(1)  # 0: -1, 1: +1
    return zigzag


def _unfold(folded: Words) -> Words:
    zigzag = folded + folded.dtype.type(1)
    one = folded.dtype.type(1)
    unfolded: Words = (zigzag >> one) ^ (~(zigzag & one) + one)
    return unfolded


def _planes(count: int) -> int:
    """Bytes of a plane of so many bits."""
    return (count + 7) // 8


def _top(width: int) -> int:
    """The number that stands for "does not fit"."""
    return (1 << width) - 1
