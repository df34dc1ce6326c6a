"""Objects in a folder of any fsspec filesystem: whole, in ranges, or written piece by piece; every call within a time limit.

Credentials and endpoints come from where the filesystem looks for them: for ``s3://`` (extra ``s3``) AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL_S3 and the like; anything else through fsspec's own FSSPEC_<PROTOCOL>_<OPTION>.
"""

from __future__ import annotations

import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from seamlessflow.errors import Unavailable

from .timeouts import StoreCalls, StoreTimeouts

# Files of a store that is a folder on this machine: a second name for one, and no writing into any. Plain system calls.
#
# Whoever calls them gives them a time limit (store_calls.py); one that was given up must not act behind its caller's back.


_WRITING = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def make_link(source: str, link: Path, num_bytes: int, is_given_up: Callable[[], bool]) -> bool:
    """Call a regular file ``link`` as well; False, and no link is left, for one that is something else, a symbolic link too,
    or has other than so many bytes. Raises OSError, or NotImplementedError where the system cannot."""
    os.link(source, link, follow_symlinks=False)
    found = link.lstat()
    is_right = stat.S_ISREG(found.st_mode) and found.st_size == num_bytes
    if not is_right or is_given_up():
        link.unlink()
    return is_right


def read_at(file: Path, start: int, end: int) -> bytes:
    """Its bytes from ``start`` to ``end``, fewer where it ends before. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - start, start)
    finally:
        os.close(descriptor)


def forbid_writing(file: Path) -> None:
    """For everybody, its owner too; who may read it stays as it is. Raises OSError."""
    file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_WRITING)


BUFFER_BYTES = 64 << 20
"""What one write to an open file, or its closing, may have to send of what was written before: s3fs collects 50 MiB."""
MOST_READ_BYTES = 16 << 20
"""Assumed size of an object that is read whole; it decides how long that may take. Weights come in ranges."""


class ObjectStore:
    """A folder of an object store. Calls block the calling thread, each for a limited time (``limits``)."""

    def __init__(self, url: str, limits: StoreTimeouts | None = None) -> None:
        self.url = url.rstrip("/")
        self.fs, self.root = fsspec.core.url_to_fs(self.url)
        self._limits, self._calls = limits or StoreTimeouts(), StoreCalls()

    def path(self, *parts: str) -> str:
        """Full path inside the filesystem."""
        return "/".join((self.root.rstrip("/"), *parts))

    def write(self, path: str, content: bytes) -> None:
        """Put a whole object; raises Unavailable when the store refuses."""
        full = self.path(path)
        try:
            target = self._aside(full)
            self._call("pipe_file", target, content, num_bytes=len(content))
            self._in_place(target, full)
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot write {path} ({len(content)} bytes): {_why(wrong)}") from wrong

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Put an object piece by piece, never whole in memory. On a local disk it becomes read-only: others may
        have linked it. Raises Unavailable; what was put until then is taken back, as far as can be."""
        full = self.path(path)
        num_bytes = 0
        try:
            target = self._aside(full)
            file = self._calls.within(self._limits.seconds(), partial(self.fs.open, target, "wb"))
            try:
                for chunk in chunks:
                    self._calls.within(self._limits.seconds(len(chunk) + BUFFER_BYTES), partial(file.write, chunk))
                    num_bytes += len(chunk)
                self._calls.within(self._limits.seconds(BUFFER_BYTES), file.close)
            except BaseException:
                self._take_back(file, target if target != full else None)
                raise
            self._forbid_writing(target)
            self._in_place(target, full)
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot write {path} (after {num_bytes} bytes): {_why(wrong)}") from wrong

    def _take_back(self, file: Any, aside: str | None) -> None:
        """A file that was not written to its end: closing an upload would put the part in place of the whole."""
        with suppress(Exception):
            if isinstance(file, AbstractBufferedFile):
                file.closed = True  # before another thread can close it
                self._calls.within(self._limits.seconds(), file.discard)
            else:
                self._calls.within(self._limits.seconds(), file.close)
        with suppress(Exception):
            if aside is not None:
                self._call("rm_file", aside)

    def _aside(self, full: str) -> str:
        """Where to write first: a reader must never see half of a file, so files get a name that no other writer has."""
        if not _has_folders(self.fs):
            return full
        self._call("makedirs", full.rsplit("/", 1)[0], exist_ok=True)
        return f"{full}.{uuid.uuid4().hex}.part"

    def _in_place(self, target: str, full: str) -> None:
        if target != full:
            self._call("mv", target, full)

    def _forbid_writing(self, target: str) -> None:
        if isinstance(self.fs, LocalFileSystem):
            with suppress(OSError):  # a disk without such modes, or another user's
                self._calls.within(self._limits.seconds(), partial(forbid_writing, Path(target)))

    def folders(self, path: str) -> list[str]:
        """Names of what lies directly below a folder, sorted; empty when it does not exist. Raises Unavailable."""
        try:
            self.fs.invalidate_cache()
            listed = self._call("ls", self.path(path), detail=False)
            return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in listed)
        except FileNotFoundError:
            return []
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot list {path}: {_why(wrong)}") from wrong

    def remove_folder(self, path: str) -> None:
        """Delete a folder and all below it; nothing when it does not exist. Raises Unavailable."""
        self._remove("rm", path, recursive=True)

    def remove(self, path: str) -> None:
        """Delete one object; nothing when it does not exist. Raises Unavailable."""
        self._remove("rm_file", path)

    def _remove(self, how: str, path: str, **options: Any) -> None:
        try:
            self.fs.invalidate_cache()
            self._call(how, self.path(path), **options)
        except FileNotFoundError:
            pass
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot remove {path}: {_why(wrong)}") from wrong

    def read(self, path: str) -> bytes:
        """A whole object; raises FileNotFoundError, or Unavailable for any other trouble. For large ones see
        ``read_range``."""
        return self._read(path, MOST_READ_BYTES, {})

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` of an object, without ``end``; fewer where it is shorter. Raises as ``read``; some stores
        also when nothing of it is there."""
        return self._read(path, end - start, {"start": start, "end": end})

    def _read(self, path: str, num_bytes: int, part: Mapping[str, int]) -> bytes:
        try:
            return bytes(self._call("cat_file", self.path(path), num_bytes=num_bytes, **part))
        except FileNotFoundError:
            raise
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot read {path}: {_why(wrong)}") from wrong

    def link(self, path: str, link: Path, num_bytes: int) -> bool:
        """Give a local file of this store, of so many bytes, a second name, ``link``, which nothing has yet: for someone who
        will not write into it. False, and no link is left: it cannot be done, because the store is elsewhere, on another disk
        or another user's, or the file is not what was expected. Whoever copies it instead sees what is wrong."""
        if not isinstance(self.fs, LocalFileSystem):
            return False
        given_up = threading.Event()
        try:
            # Not in the thread: left behind, it might make a folder again that was removed since.
            link.parent.mkdir(parents=True, exist_ok=True)
            linking = partial(make_link, self.path(path), link, num_bytes, given_up.is_set)
            return self._calls.within(self._limits.seconds(), linking)
        except (OSError, RuntimeError):  # RuntimeError: no more threads, or a system without links
            given_up.set()  # before we remove it: it comes while we look, and goes, or not at all
            with suppress(OSError):
                link.unlink(missing_ok=True)
            return False

    def read_link(self, link: Path, start: int, end: int) -> bytes:
        """Bytes of a local file that ``link`` made, by that name: they are there when the store has removed its own. Within the
        time of any call to the store, on whose disk it is. Raises Unavailable."""
        try:
            return self._calls.within(self._limits.seconds(end - start), partial(read_at, link, start, end))
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot read {link}, which is linked to it: {_why(wrong)}") from wrong

    def exists(self, path: str) -> bool:
        """Whether an object is there. Raises Unavailable."""
        try:
            self.fs.invalidate_cache()
            return bool(self._call("exists", self.path(path)))
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot look for {path}: {_why(wrong)}") from wrong

    def num_bytes(self, path: str) -> int | None:
        """Of one object. None: it cannot be told, or there is none."""
        try:
            self.fs.invalidate_cache()
            size = self._call("size", self.path(path))
        except Exception:  # each filesystem raises its own, and the caller reports its own failure
            return None
        return None if size is None else int(size)

    def bytes_below(self, path: str) -> int | None:
        """Of all objects below a folder, as far as the last listing saw them. None: that cannot be told."""
        try:
            return int(self._call("du", self.path(path)))
        except Exception:  # each filesystem raises its own, and it is only a figure
            return None

    def _call(self, name: str, *arguments: object, num_bytes: int = 0, **options: object) -> Any:
        return self._calls.call(self.fs, name, *arguments, seconds=self._limits.seconds(num_bytes), **options)


def _has_folders(fs: object) -> bool:
    """False for object stores, where a put is whole or nothing and making a "folder" may mean making a bucket."""
    protocol = getattr(fs, "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return not names & {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}


def _why(wrong: Exception) -> str:
    """Some errors of filesystems have no words."""
    return str(wrong) or type(wrong).__name__
