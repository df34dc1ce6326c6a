"""Safetensors files as bit patterns, without a framework: 8 bytes of header length, a JSON header, the tensors' bytes.

numpy has no bfloat16; unsigned integers of a value's width hold its bits, and comparing those is what bit-exact means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seamlessflow.errors import BadInput

from .delta_codec import Words
from .digests import ALGORITHM, digest_of, num_cores, split_digest

WORD_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip
"""Bytes of a value, by the name that safetensors gives a dtype."""
_INFINITY = {"F64": 0x7FF << 52, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
"""The pattern of infinity: without their signs, those of NaN are above it, and no others."""
ALIGNMENT = 8
"""The tensors' bytes begin at a multiple of it."""
LOOK_VALUES = 1 << 18
"""Values looked at in one go: they and what is computed from them fit into a core's cache."""


@dataclass(frozen=True, slots=True)
class Bits:
    """A tensor's bit patterns. words: [number of values], in the order of the tensor's memory."""

    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    words: Words


def header(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """What a file begins with: length and JSON, of tensors (name, dtype, shape) that follow in this order, without gaps."""
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + WORD_BYTES[dtype] * prod(shape)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def map_tensors(path: Path, *, writable: bool = False) -> dict[str, Bits]:
    """The tensors of a file, mapped rather than read; writable: changes go into the file. Raises BadInput."""
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r+" if writable else "r")
    except (OSError, ValueError) as wrong:
        raise BadInput(f"{path.name} cannot be read as safetensors: {wrong}; nothing was loaded") from wrong
    return parse_tensors(content, path.name)[0]


def parse_tensors(content: NDArray[np.uint8], whose: str) -> tuple[dict[str, Bits], Mapping[str, str]]:
    """The tensors of a file's bytes, without a copy, and its metadata. Raises BadInput, naming ``whose`` bytes they are."""
    try:
        begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
        if begin > len(content):
            raise ValueError(f"a header up to byte {begin} in a file of {len(content)}")
        header: dict[str, Any] = json.loads(content[8:begin].tobytes())
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(content[begin:], **described) for name, described in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as wrong:
        raise BadInput(f"{whose} is not safetensors: {wrong!r}; nothing was loaded") from wrong
    return tensors, metadata


def _tensor(content: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]) -> Bits:
    begin, end = data_offsets
    width = WORD_BYTES[dtype]
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"a tensor of the shape {shape}")
    taken = content[begin:end]
    if not 0 <= begin <= end or len(taken) != end - begin or len(taken) != width * prod(shape):
        raise ValueError(f"a tensor of {dtype} {shape} at bytes {begin}..{end} of {len(content)}")
    return Bits(dtype, tuple(shape), taken.view(np.dtype(f"u{width}")))


def check_numbers(tensors: Mapping[str, Bits], whose: str) -> None:
    """Raises BadInput, naming the tensor, when a value is NaN: no engine may see it.

    The second line: a writer publishes none, nor an infinity but in what was infinite from the start (a mask's tensor).
    """
    with ThreadPoolExecutor(num_cores()) as pool:
        for name, has_nan in zip(tensors, pool.map(_has_nan, tensors.values()), strict=True):
            if has_nan:
                raise BadInput(f"{whose}: tensor {name} has values that are NaN; nothing of it is loaded")


def _has_nan(tensor: Bits) -> bool:
    if tensor.dtype not in _INFINITY:
        return False
    infinity = tensor.words.dtype.type(_INFINITY[tensor.dtype])
    without_sign = tensor.words.dtype.type(~tensor.words.dtype.type(0) >> 1)
    pieces = range(0, len(tensor.words), LOOK_VALUES)
    return any(bool(((tensor.words[at : at + LOOK_VALUES] & without_sign) > infinity).any()) for at in pieces)


def check_same_layout(old: Mapping[str, Bits], new: Mapping[str, Bits], whose: str) -> None:
    """Raises BadInput, naming what differs, unless both have the same tensors of the same dtypes and shapes."""
    if missing := sorted(old.keys() - new.keys()):
        raise BadInput(f"{whose}: tensors {_some(missing)} of its base are missing; it is not used")
    if extra := sorted(new.keys() - old.keys()):
        raise BadInput(f"{whose}: tensors {_some(extra)} are not in its base; it is not used")
    for name, was in old.items():
        now = new[name]
        if (was.dtype, was.shape) != (now.dtype, now.shape):
            raise BadInput(
                f"{whose}: tensor {name} is {now.dtype} {list(now.shape)}, in its base {was.dtype} {list(was.shape)}; "
                "it is not used"
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# Numbers from bit patterns and back: numpy has no bfloat16.
#
# Back means rounded to the nearest, ties to even: from float64 by way of float32, as torch casts.


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


# The digest of each tensor: what says whether a version is bit for bit what its writer had.


def tensor_digests(tensors: Mapping[str, Bits]) -> dict[str, str]:
    """BLAKE3 of each tensor's bytes, on several cores."""
    return _digests(tensors, {})


def check_tensors(tensors: Mapping[str, Bits], wanted: Mapping[str, str], whose: str) -> None:
    """Raises BadInput, naming the first that differs, unless each tensor has its digest, and there is no other."""
    found = _digests(tensors, {name: split_digest(digest)[0] for name, digest in wanted.items()})
    whole = {name: ":".join(split_digest(digest)) for name, digest in wanted.items()}
    if wrong := sorted(name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name)):
        raise BadInput(f"{whose}: {len(wrong)} tensors are not what was published, {wrong[0]} the first; nothing was loaded")


def _digests(tensors: Mapping[str, Bits], algorithms: Mapping[str, str]) -> dict[str, str]:
    """algorithms: by tensor; of the others, ours."""

    def digest(name: str) -> str:
        return digest_of(tensors[name].words.view("u1").data, algorithms.get(name, ALGORITHM))

    largest_first = sorted(tensors, key=lambda name: -tensors[name].words.nbytes)
    with ThreadPoolExecutor(num_cores()) as pool:
        found = dict(zip(largest_first, pool.map(digest, largest_first), strict=True))
    return {name: found[name] for name in tensors}
