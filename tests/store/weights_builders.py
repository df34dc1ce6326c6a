"""Tensors as bit patterns, and pairs of them that differ as weights of two steps do, or in any other way."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from seamlessflow.weights.safetensors_file import WORD_BYTES, Bits

Tensors = dict[str, Bits]


def tensor(dtype: str, words: object, shape: tuple[int, ...] | None = None) -> Bits:
    array = np.array(words, np.dtype(f"u{WORD_BYTES[dtype]}"))
    return Bits(dtype, (len(array),) if shape is None else shape, array)


def copy(tensors: Mapping[str, Bits]) -> Tensors:
    return {name: Bits(each.dtype, each.shape, each.words.copy()) for name, each in tensors.items()}


def same(one: Mapping[str, Bits], other: Mapping[str, Bits]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, one[name].words.tobytes())
        == (other[name].dtype, other[name].shape, other[name].words.tobytes())
        for name in one
    )


def safetensors(tensors: Mapping[str, Bits]) -> bytes:
    """The file of such tensors."""
    header: dict[str, object] = {}
    at = 0
    for name, each in tensors.items():
        header[name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": [at, at + each.words.nbytes]}
        at += each.words.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(each.words.tobytes() for each in tensors.values())


def stepped(tensors: Mapping[str, Bits], *, share: float, farthest: int, seed: int) -> Tensors:
    """The same with a share of values moved, by up to ``farthest`` bit patterns either way."""
    stream = np.random.default_rng(seed)
    after = copy(tensors)
    for each in after.values():
        moved = stream.random(len(each.words)) < share
        steps = stream.integers(1, farthest + 1, len(each.words)) * stream.choice([-1, 1], len(each.words))
        each.words[moved] += steps.astype(f"i{each.words.itemsize}").view(each.words.dtype)[moved]
    return after


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensors, Tensors]:
    """Two versions of a few tensors: equal, a little different, all different; any bit patterns, empty ones too."""
    stream = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    old: Tensors = {}
    for index in range(draw(st.integers(0, 3))):
        dtype = draw(st.sampled_from(sorted(WORD_BYTES)))
        size = draw(st.integers(0, 300))
        width = WORD_BYTES[dtype]
        old[f"t{index}"] = tensor(dtype, stream.integers(0, 256, size * width, np.uint8).view(f"u{width}"))
    share, farthest = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])), draw(st.sampled_from([1, 2, 5, 17, 60]))
    return old, stepped(old, share=share, farthest=farthest, seed=draw(st.integers(0, 99)))
