"""Numbers from bit patterns and back: numpy has no bfloat16.

Back means rounded to the nearest, ties to even: from float64 by way of float32, as torch casts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .steps import Words

FLOATS = ("F64", "F32", "F16", "BF16")
"""What safetensors calls the dtypes that are read and written here."""

Numbers = NDArray[np.float64]


def to_numbers(words: Words, dtype: str) -> Numbers:
    """Exact. words: bit patterns of a dtype of FLOATS, of any shape."""
    if dtype == "BF16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return words.view(np.dtype(f"f{words.itemsize}")).astype(np.float64)


def from_numbers(numbers: Numbers, dtype: str) -> Words:
    """Bit patterns of the nearest values of a dtype of FLOATS; beyond its range they are infinite. No NaN may be among them."""
    with np.errstate(over="ignore"):  # the caller looks for infinities
        if dtype == "F64":
            words: Words = numbers.view(np.uint64)
        elif dtype == "F16":
            words = numbers.astype(np.float32).astype(np.float16).view(np.uint16)
        else:
            words = numbers.astype(np.float32).view(np.uint32)
            if dtype == "BF16":
                words = _upper_half(words)
        return words


def _upper_half(words: Words) -> Words:
    """float32 to bfloat16: the lower 16 bits are rounded into the upper ones. A carry out of the mantissa is right as it is."""
    is_odd = (words >> np.uint32(16)) & np.uint32(1)
    rounded: Words = ((words + np.uint32(0x7FFF) + is_odd) >> np.uint32(16)).astype(np.uint16)
    return rounded
