"""A file from the store, in ranges read side by side, each checked by itself; memory for those being read alone.

    ranges not here yet ─▶ PARALLEL_READS at a time ─▶ digest ─┬▶ written where it belongs
                               ▲                               └▶ not to be had: again, after a pause; wrong: again at once
                               └──────────────────────────────────┘

A range that has the same wrong bytes twice is damaged in the store. One that cannot be had ends the download; what was
written stays for the next one, in this process or a later one. ETags are not looked at: digests say what the bytes are.
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from seamlessflow.errors import Missing, Unavailable, WrongBytes
from seamlessflow.store.large_payloads import Store
from seamlessflow.store.object_store import ObjectStore

from .digests import hex_of, new_hash
from .partial_file import PartFile, forget_parts
from .stored_file import StoredFile

# A file of a store that is a folder on the same disk: linked instead of copied, and checked like any other.
#
# Objects in a store are written once, aside, and never changed, so a second name is as good as a second file, and outlives the
# first. It costs no room and no writing; nobody may write into it (docs/adr/0021). What is checked is read by the second name:
# it is what will be loaded, whatever becomes of the first meanwhile.


class LinkedFile:
    """``path`` is a link to the store's object. Whoever downloads reads it once and has nothing to write: see ``PartFile``."""

    def __init__(self, store: ObjectStore, path: Path, file: StoredFile) -> None:
        self.path, self._store, self._file = path, store, file

    def missing(self) -> list[int]:
        """Numbers of the ranges that nobody has checked: all."""
        return list(range(len(self._file.spans())))

    def write(self, begin: int, content: bytes) -> None:
        """It is there."""

    def read(self, begin: int, end: int) -> bytes:
        """Within the store's time: a mount that hangs holds up nobody for ever. Raises Unavailable."""
        return self._store.read_link(self.path, begin, end)

    def move_to(self, target: Path) -> None:
        self.path.replace(target)

    def close(self) -> None:
        """Nothing is open."""

    def remove(self) -> None:
        """The store keeps its own name."""
        self.path.unlink(missing_ok=True)


PARALLEL_READS = 8
"""At a time. Fewer leave a fast store waiting, more do not help: s3fs is one thread, whoever reads (docs/adr/0015)."""
PAUSES_SECONDS = (0.25, 0.5, 1.0, 2.0)
"""Before a range is asked for again, each a little more or less, so that readers that were throttled together do not come
back together. Longer troubles are the caller's, who tries the whole again later and loses nothing."""
KEPT_PARTS = 2
"""Files that began to arrive, side by side in a folder: no route leads over a third full version (routes.py)."""

Arriving = PartFile | LinkedFile
ReadRange = Callable[[int, int], bytes]


class DiskTrouble(Unavailable):
    """This machine's disk refuses what was fetched; the store is not to blame."""


def download(
    store: Store,
    path: str,
    file: StoredFile,
    target: Path,
    *,
    parts: Path | None = None,
    may_link: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Bring a file here; ``target`` has all of it, or is as it was. Returns the bytes that were fetched. Blocks.

    may_link: nobody will write into ``target``, so where the store is on its disk it may be the store's own file.
    parts: a folder, on the disk of ``target``, where what arrived is kept if the rest does not, for a later call, as far as
    it can be checked then. None: nothing is kept. should_stop: looked at before each range.
    Raises Unavailable: WrongBytes where bytes are not those of the manifest, DiskTrouble where they cannot be written, others
    when the store refuses or it was asked to stop.
    """
    if not file.ranges:  # what was left of it could not be told from damage
        parts = None
    part = target.with_name(f"{target.name}.part") if parts is None else parts / file.hex_digest
    local = (_linked(store, path, file, target) if may_link else None) or PartFile(part, file)
    try:
        missing = local.missing()
        read = local.read if isinstance(local, LinkedFile) else partial(store.read_range, path)
        _Reads(read, path, file, local, should_stop).read(missing)
        target.parent.mkdir(parents=True, exist_ok=True)
        local.move_to(target)
    except WrongBytes:
        local.remove()
        raise
    except Unavailable as wrong:
        _require_whole(store, path, file, wrong)
        raise
    except OSError as wrong:  # the store's own are Unavailable by now
        local.remove()  # others may need the room
        raise DiskTrouble(_no_room(path, file, part.parent, wrong)) from wrong
    finally:
        local.close()
        if parts is None or isinstance(local, LinkedFile):
            local.path.unlink(missing_ok=True)
        else:
            forget_parts(parts, keep=KEPT_PARTS)
    spans = file.spans()
    return sum(end - begin for begin, end in (spans[number] for number in missing))


def _require_whole(store: Store, path: str, file: StoredFile, wrong: Unavailable) -> None:
    """Raises WrongBytes where the object has another length than was written: some stores refuse a range behind its end."""
    found = store.num_bytes(path)
    if found not in (None, file.num_bytes):
        raise WrongBytes(f"{path} has {found} bytes, and {file.num_bytes} were written; nothing was loaded", path) from wrong


def _linked(store: Store, path: str, file: StoredFile, target: Path) -> LinkedFile | None:
    """None: it has to be copied."""
    link = target.with_name(f"{target.name}.{uuid.uuid4().hex}.link")  # one that hangs must not meet the next one's
    return LinkedFile(store, link, file) if store.link(path, link, file.num_bytes) else None


def check_in_store(store: Store, path: str, file: StoredFile) -> None:
    """Read a file without keeping it. Raises WrongBytes unless it has the bytes it was written with; Unavailable."""
    whole = new_hash(file.algorithm)
    try:
        for begin, end in file.spans():
            whole.update(store.read_range(path, begin, end))
    except FileNotFoundError as wrong:
        raise Unavailable(f"{path} was written and is not in the store") from wrong
    if whole.hexdigest() != file.hex_digest:
        raise WrongBytes(f"{path} is not read as it was written", path)


class _Reads:
    """Ranges of one file on their way. read: from where they are."""

    def __init__(self, read: ReadRange, path: str, file: StoredFile, local: Arriving, should_stop: Callable[[], bool]) -> None:
        self._read, self._path, self._file, self._local, self._should_stop = read, path, file, local, should_stop
        self._spans = file.spans()
        self._failure: Exception | None = None
        self._ended = threading.Event()

    def read(self, missing: list[int]) -> None:
        """Write them all. Raises what the first that failed did."""
        with ThreadPoolExecutor(max(1, min(PARALLEL_READS, len(missing)))) as pool:
            reads = [pool.submit(self._read_one, number) for number in missing]
            digest = None if self._file.ranges else self._digest_in_order(reads)
        if self._failure is not None:
            raise self._failure
        if digest is not None and digest != self._file.hex_digest:
            raise WrongBytes(
                f"{self._path}: {self._file.num_bytes} bytes do not have the manifest's digest; nothing was loaded", self._path
            )

    def _digest_in_order(self, reads: list[Future[None]]) -> str:
        """Of the whole, from front to back as ranges arrive: what was just written is in the page cache still."""
        whole = new_hash(self._file.algorithm)
        for (begin, end), read in zip(self._spans, reads, strict=True):
            read.result()
            if self._failure is not None:
                break
            whole.update(self._local.read(begin, end))
        return whole.hexdigest()

    def _read_one(self, number: int) -> None:
        """Does not raise: the first failure ends all of them."""
        if self._failure is not None:
            return
        try:
            self._local.write(self._spans[number][0], self._content(number))
        except Exception as wrong:
            self._failure = self._failure or wrong
            self._ended.set()

    def _content(self, number: int) -> bytes:
        """A range as it was written. Raises Unavailable."""
        begin, end = self._spans[number]
        failure, seen = Unavailable(f"{self._path} was given up"), set[str]()
        for pause in (0.0, *PAUSES_SECONDS):
            longer = 0.0 if isinstance(failure, WrongBytes) else random.uniform(0.5, 1.5)  # noqa: S311 (no secret)
            if self._should_stop() or self._ended.wait(pause * longer):
                break
            try:
                content = self._read(begin, end)
            except FileNotFoundError as wrong:
                raise Missing(
                    f"{self._path} is in the manifest and not in the store; nothing was loaded", self._path
                ) from wrong
            except Unavailable as wrong:
                failure = wrong
                continue
            digest = hex_of(content, self._file.algorithm)
            if self._is_right(number, content, digest):
                return content
            failure = WrongBytes(
                f"{self._path}: bytes {begin} to {end} ({len(content)} came) do not have the manifest's digest; "
                "nothing was loaded",
                self._path,
            )
            if digest in seen:
                break
            seen.add(digest)
        raise failure

    def _is_right(self, number: int, content: bytes, digest: str) -> bool:
        begin, end = self._spans[number]
        return len(content) == end - begin and (not self._file.ranges or digest == self._file.ranges[number])


def _no_room(path: str, file: StoredFile, folder: Path, wrong: OSError) -> str:
    is_room = wrong.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    free = f", {shutil.disk_usage(folder).free} bytes are free" if is_room and folder.exists() else ""
    return f"{path} cannot be written to {folder}: {wrong}; it has {file.num_bytes} bytes{free}; nothing was loaded"
