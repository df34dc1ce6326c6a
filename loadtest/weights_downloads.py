"""How fast a file comes from the store in ranges, and how much memory that takes, beside one plain read of the same bytes.

The plain read is the floor: it neither checks nor writes what it got. The same file is read from a local folder, and through
s3fs from a process that speaks as much of S3 as that takes, on the loopback (``weights_s3_stub``). Part of
``loadtest.weights``; alone it writes weights_downloads.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fsspec

from loadtest.report import Figure, arguments, publish
from seamlessflow.local.child_processes import die_with_parent
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.download import download
from seamlessflow.weights.stored_file import FileDigests, StoredFile

MEGABYTE = 1e6
PLAIN = "one plain read, neither checked nor written"
FILE_BYTES, QUICK_BYTES = 256 << 20, 2 << 20
BUCKET, PATH = "lake", "demo/file"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(slots=True)
class Measured:
    """Of one store, a number for each run."""

    speeds: list[float] = field(default_factory=list)
    plain_speeds: list[float] = field(default_factory=list)
    """Megabytes per second, these two."""
    peaks: list[float] = field(default_factory=list)
    plain_peaks: list[float] = field(default_factory=list)
    """Megabytes that Python held at most, these two."""


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each speed; the median counts")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        figures = download_figures(Path(scratch), 1 if options.quick else options.runs, is_quick=options.quick)
    publish("weights_downloads", figures, options.results)


def download_figures(folder: Path, num_runs: int, *, is_quick: bool) -> dict[str, Figure]:
    """Figures of both stores. ``folder``: for the local one, and for what arrives."""
    local, figures = Store(f"file://{folder}/{BUCKET}"), {}
    file = _write(local, QUICK_BYTES if is_quick else FILE_BYTES)
    with _s3_server(folder):
        for name, store in (("file", local), ("s3", Store(f"s3://{BUCKET}"))):
            found = _measure(store, file, folder / f"from-{name}", num_runs)
            figures[f"download_mb_per_s_{name}"] = Figure("MB/s", "higher", found.speeds, PLAIN, found.plain_speeds)
            figures[f"download_peak_mb_{name}"] = Figure("MB", "lower", found.peaks, PLAIN, found.plain_peaks)
    return figures


def _write(store: Store, num_bytes: int) -> StoredFile:
    digests = FileDigests()
    store.write_chunks(PATH, digests.passing([os.urandom(num_bytes)]))
    return digests.file()


def _measure(store: Store, file: StoredFile, target: Path, num_runs: int) -> Measured:
    found, megabytes = Measured(), file.num_bytes / MEGABYTE
    in_ranges, plainly = partial(download, store, PATH, file, target), partial(store.read, PATH)
    for run in range(num_runs + 1):
        taken, plain_taken = _seconds(in_ranges), _seconds(plainly)
        if run:  # the first one finds nothing in the page cache
            found.speeds.append(megabytes / taken)
            found.plain_speeds.append(megabytes / plain_taken)
        target.unlink()
    found.peaks.append(_peak(in_ranges))
    found.plain_peaks.append(_peak(plainly))
    target.unlink()
    return found


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _peak(work: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / MEGABYTE
    finally:
        tracemalloc.stop()


@contextmanager
def _s3_server(folder: Path) -> Iterator[None]:
    """The files of a folder as objects, until the end. Endpoint and keys stand in the environment meanwhile."""
    command = [sys.executable, "-m", "loadtest.weights_s3_stub", str(folder)]
    before = {name: os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", *KEYS)}
    clients = fsspec.get_filesystem_class("s3")
    clients.clear_instance_cache()  # one keeps the environment that it was made in
    dies_with_us = partial(die_with_parent, os.getpid())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=dies_with_us) as server:
        try:
            assert server.stdout is not None
            os.environ.update({**KEYS, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{int(server.stdout.readline())}"})
            yield
        finally:
            server.terminate()
            clients.clear_instance_cache()
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


if __name__ == "__main__":
    main()
