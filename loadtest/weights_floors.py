"""What an update of the weights costs at the least: copying them, and moving their bytes over this machine's disk."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from loadtest.run_rig import RunRig

CHUNK_BYTES = 1 << 24


class Copies:
    """Copies of the served weights over others, in place, by several at once. Memory is touched once before it counts."""

    def __init__(self, rig: RunRig, num_workers: int) -> None:
        served = {name: tensor.to(rig.dtype) for name, tensor in rig.weights.items()}
        self._pairs = [({n: t.clone() for n, t in served.items()}, served) for _ in range(num_workers)]

    def seconds(self) -> float:
        """Blocks."""
        with ThreadPoolExecutor(len(self._pairs)) as pool:
            began = time.perf_counter()
            list(pool.map(lambda pair: _copy(*pair), self._pairs))
            return time.perf_counter() - began


@torch.no_grad()
def _copy(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    for name, source in sources.items():
        targets[name].copy_(source)


def disk_seconds(rig: RunRig, num_readers: int) -> float:
    """Writing one full version's bytes where the store is, then reading them as often as there are workers, all at once."""
    file, num_bytes = rig.folder / "store" / "floor", sum(t.numel() for t in rig.weights.values()) * rig.dtype.itemsize
    content = os.urandom(min(num_bytes, CHUNK_BYTES))
    began = time.perf_counter()
    with file.open("wb") as out:
        for _ in range(-(-num_bytes // len(content))):
            out.write(content)
    with ThreadPoolExecutor(num_readers) as pool:
        list(pool.map(_read, [file] * num_readers))
    seconds = time.perf_counter() - began
    file.unlink()
    return seconds


def _read(file: Path) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with file.open("rb", buffering=0) as source:
        while source.readinto(buffer):
            pass
