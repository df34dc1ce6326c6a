"""One version of the weights from the one before it: what changed, bit for bit, and nothing else.

The file is safetensors: ``chunks`` has a row for each chunk of each tensor (the tensors in the order of the metadata, a
tensor's chunks from front to back), ``data`` their bytes one after the other, positions before values:

    chunks[i] = values changed, coding of positions | coding of values << 8, bytes of positions, bytes of values

Chunks are coded by themselves (gaps.py, steps.py), on as many threads as there are cores; numpy lets go of the lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from seamlessflow.errors import BadInput

from .delta_codec import Bytes, Words, decode_positions, decode_values, encode_positions, encode_values
from .digests import num_cores
from .safetensors_file import WORD_BYTES, Bits, check_same_layout, header, parse_tensors

FORMAT = "seamlessflow-delta-1"
CHUNK_VALUES = 1 << 21
"""Values coded together; part of the format. Measured: with 2 ** 18, Python between the numpy calls halves the speed."""
S = TypeVar("S")
T = TypeVar("T")

Row = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Delta:
    """A parsed delta: ``layout`` is what it must be applied to."""

    layout: Mapping[str, Bits]
    """Of every tensor name, dtype and shape; the words are empty."""
    chunks: NDArray[np.uint32]
    data: Bytes
    num_values: int
    num_changed: int


def encode(old: Mapping[str, Bits], new: Mapping[str, Bits], *, num_threads: int | None = None) -> bytes:
    """What makes ``new`` of ``old``. Raises BadInput when names, dtypes or shapes differ. num_threads None: our cores."""
    check_same_layout(old, new, "the new weights")
    pairs = [pair for name in old for pair in zip(_chunks(old[name].words), _chunks(new[name].words), strict=True)]
    coded = _each(_encode_chunk, pairs, num_threads)
    rows = np.array([row for row, _ in coded], np.uint32).reshape(-1, 4)
    data = [part.data for _, parts in coded for part in parts]
    return b"".join([_header(rows, sum(map(len, data)), old), rows.tobytes(), *data])


def parse(content: bytes | memoryview, whose: str = "a weights delta") -> Delta:
    """Raises BadInput when it is no delta, or one of a format unknown here."""
    tensors, metadata = parse_tensors(np.frombuffer(content, np.uint8), whose)
    try:
        if metadata["format"] != FORMAT:
            raise ValueError(f"its format is {metadata['format']}, known here is {FORMAT}")
        chunk_values = int(metadata["chunk_values"])
        if chunk_values != CHUNK_VALUES:
            raise ValueError(f"its chunks have {chunk_values} values, known here are {CHUNK_VALUES}")
        layout = {
            name: Bits(dtype, tuple(shape), np.empty(0, np.dtype(f"u{WORD_BYTES[dtype]}")))
            for name, dtype, shape in json.loads(metadata["tensors"])
        }
        chunks = tensors["chunks"].words.view(np.uint32).reshape(-1, 4)
        data = tensors["data"].words.view(np.uint8)
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise BadInput(f"{whose} is no delta that can be used: {wrong!r}; nothing was loaded") from wrong
    sizes = [prod(tensor.shape) for tensor in layout.values()]
    num_chunks = sum(-(-size // CHUNK_VALUES) for size in sizes)
    if len(chunks) != num_chunks or int(chunks[:, 2:].sum(dtype=np.uint64)) != len(data):
        raise BadInput(f"{whose} is damaged: its parts do not have the sizes it names; nothing was loaded")
    return Delta(layout, chunks, data, sum(sizes), int(chunks[:, 0].sum(dtype=np.uint64)))


def apply(delta: Delta, tensors: Mapping[str, Bits], *, num_threads: int | None = None) -> None:
    """Change ``tensors`` in place. Raises BadInput: for another layout before anything was changed, for damaged bytes
    at any time; the tensors are then neither version and must not be used."""
    check_same_layout(tensors, delta.layout, "a weights delta")
    targets = [chunk for name in delta.layout for chunk in _chunks(tensors[name].words)]
    ends = delta.chunks[:, 2:].sum(axis=1, dtype=np.intp).cumsum()
    work = [
        (target, row, delta.data[end - row[2] - row[3] : end])
        for target, row, end in zip(targets, delta.chunks.tolist(), ends.tolist(), strict=True)
        if row[0]
    ]
    _each(_apply_chunk, work, num_threads)


def _encode_chunk(pair: tuple[Words, Words]) -> tuple[Row, tuple[Bytes, ...]]:
    old, new = pair
    changed = old != new
    positions = np.flatnonzero(changed)
    if not len(positions):
        return (0, 0, 0, 0), ()
    where, position_bytes = encode_positions(changed, positions)
    what, value_bytes = encode_values(old[positions], new[positions])
    return (len(positions), where | what << 8, len(position_bytes), len(value_bytes)), (position_bytes, value_bytes)


def _apply_chunk(work: tuple[Words, Row, Bytes]) -> None:
    target, (num_changed, coding, position_bytes, _), content = work
    where, what = coding & 0xFF, coding >> 8
    positions = decode_positions(where, content[:position_bytes], num_values=len(target), num_changed=num_changed)
    target[positions] = decode_values(what, content[position_bytes:], target[positions])


def _chunks(words: Words) -> Iterator[Words]:
    for begin in range(0, len(words), CHUNK_VALUES):
        yield words[begin : begin + CHUNK_VALUES]


def _each(function: Callable[[S], T], work: Iterable[S], num_threads: int | None) -> list[T]:
    """In order, on several threads."""
    with ThreadPoolExecutor(num_threads or num_cores()) as pool:
        return list(pool.map(function, work))


def _header(rows: NDArray[np.uint32], num_bytes: int, layout: Mapping[str, Bits]) -> bytes:
    tensors = json.dumps([(name, each.dtype, each.shape) for name, each in layout.items()])
    metadata = {"format": FORMAT, "chunk_values": str(CHUNK_VALUES), "tensors": tensors}
    return header([("chunks", "U32", rows.shape), ("data", "U8", (num_bytes,))], metadata)
