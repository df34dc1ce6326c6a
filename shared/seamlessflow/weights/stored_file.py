"""A file of a folder in the store, as its writer saw it: length, digest, and a digest for each range of its bytes.

    {"bytes": 20000000, "blake3": ..., "range_bytes": 8388608, "ranges": [blake3 of bytes 0..8388608, ...]}

So a reader may have ranges in any order and from several attempts, and knows of each whether it is what was written. Earlier
releases wrote "sha256" in place of "blake3", of files and of ranges; the first ones wrote no ranges: such a file can only be
checked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .digests import ALGORITHM, ALGORITHMS, Octets, new_hash, split_digest

RANGE_BYTES = 8 << 20
"""Bytes of a range. Large enough that a request costs little beside its bytes (S3 advises 8 to 16 MiB; measured in
docs/adr/0015), small enough that eight of them in memory are little, too, and that little is fetched again after damage."""
MOST_RANGE_BYTES = 64 << 20
"""Of a writer that has its own mind: readers hold several in memory."""
MOST_RANGES = 1 << 20
"""Of one file (8 TiB in ranges of RANGE_BYTES): readers have a list of them."""

MOST_NAME_BYTES = 200
"""Of a file's name: with what is put behind it while it arrives, filesystems take it."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a version, as its writer saw it."""

    num_bytes: int
    digest: str
    """With its algorithm's name."""
    range_bytes: int = RANGE_BYTES
    ranges: tuple[str, ...] = ()
    """Hex digits of each range's digest, by the same algorithm. (): its writer gave none, or the file is empty; it is checked
    as a whole."""

    @property
    def algorithm(self) -> str:
        return split_digest(self.digest)[0]

    @property
    def hex_digest(self) -> str:
        return split_digest(self.digest)[1]

    def spans(self) -> list[tuple[int, int]]:
        """Where each range begins, and where it ends."""
        return [(begin, min(begin + self.range_bytes, self.num_bytes)) for begin in range(0, self.num_bytes, self.range_bytes)]

    def as_json(self) -> dict[str, object]:
        """For the manifest."""
        whole: dict[str, object] = {self.algorithm: self.hex_digest, "bytes": self.num_bytes}
        return {**whole, "range_bytes": self.range_bytes, "ranges": list(self.ranges)} if self.ranges else whole


def stored_file(document: Mapping[str, object]) -> StoredFile:
    """A file of a manifest. Raises ValueError, KeyError or TypeError for one that makes no sense."""
    num_bytes, digest = document["bytes"], _digest_in(document)
    if not isinstance(num_bytes, int) or num_bytes < 0:
        raise ValueError(f"a file of {num_bytes!r} bytes")
    ranges, range_bytes = document.get("ranges", ()), document.get("range_bytes", RANGE_BYTES)
    if not isinstance(ranges, list | tuple) or not all(isinstance(each, str) for each in ranges):
        raise ValueError("digests of ranges that are no texts")
    if not isinstance(range_bytes, int) or not 0 < range_bytes <= MOST_RANGE_BYTES:
        raise ValueError(f"ranges of {range_bytes!r} bytes")
    if -(-num_bytes // range_bytes) > MOST_RANGES:
        raise ValueError(f"a file of {num_bytes} bytes in ranges of {range_bytes}")
    if ranges and len(ranges) != -(-num_bytes // range_bytes):
        raise ValueError(f"{len(ranges)} ranges of {range_bytes} bytes for {num_bytes} bytes")
    return StoredFile(num_bytes, digest, range_bytes, tuple(ranges))


def _digest_in(document: Mapping[str, object]) -> str:
    """By the best algorithm that the writer names. Raises ValueError where it names none that is known."""
    for algorithm in ALGORITHMS:
        if algorithm in document:
            digest = f"{algorithm}:{document[algorithm]}"
            split_digest(digest)
            return digest
    raise ValueError(f"a file without a digest that is known here ({', '.join(ALGORITHMS)})")


def plain_name(name: object) -> str:
    """A file's name in a manifest. Raises ValueError for one that would lead out of the folder, or that no disk takes."""
    if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
        raise ValueError(f"a file named {name!r}")
    if not name.isprintable() or len(name.encode(errors="replace")) > MOST_NAME_BYTES:
        raise ValueError(f"a file named {name!r}")
    return name


class FileDigests:
    """The digests of a file and of its ranges, while its bytes pass by."""

    def __init__(self, range_bytes: int = RANGE_BYTES) -> None:
        self._range_bytes = range_bytes
        self._ranges: list[str] = []
        self._whole, self._open = new_hash(), new_hash()
        self._num_bytes = 0

    def passing(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The same chunks. They are hashed in a thread beside whoever takes them."""
        with ThreadPoolExecutor(1) as beside:
            for chunk in chunks:
                hashed = beside.submit(self.add, chunk)
                yield chunk
                hashed.result()

    def add(self, chunk: Octets) -> None:
        """The next bytes."""
        rest = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
        while rest:
            taken = rest[: self._range_bytes - self._num_bytes % self._range_bytes]
            self._open.update(taken)
            self._whole.update(taken)
            self._num_bytes += len(taken)
            rest = rest[len(taken) :]
            if self._num_bytes % self._range_bytes == 0:
                self._close()

    def file(self) -> StoredFile:
        """All that passed. At the end, once."""
        if self._num_bytes % self._range_bytes:
            self._close()
        digest = f"{ALGORITHM}:{self._whole.hexdigest()}"
        return StoredFile(self._num_bytes, digest, self._range_bytes, tuple(self._ranges))

    def _close(self) -> None:
        self._ranges.append(self._open.hexdigest())
        self._open = new_hash()
