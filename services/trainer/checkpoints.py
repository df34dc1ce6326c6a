"""Checkpoints: all that a trainer needs to go on, in the store, and what it still has to say about it.

``{store}/{run}/checkpoints/{step:08d}/`` = ``model.safetensors`` (float32), ``optimizer.safetensors`` (AdamW and random
generators), then ``manifest.json`` with digests and the account of the groups that this checkpoint is the first to hold.
Of a LoRA run ``model.safetensors`` has the adapters alone. No pickle. A checkpoint without a manifest does not exist.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from seamlessflow.blobs import Store
from seamlessflow.contracts import GroupTrained
from seamlessflow.contracts.base import LENIENT
from seamlessflow.errors import Unavailable
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, fetch_folder, publish_folder, remove_folder

from .tensorfiles import safetensors_chunks

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tensors of a moment; nobody writes to them any more."""

    weights: Mapping[str, Tensor]
    optimizer_state: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint is of."""

    step: int
    line: int
    trained: tuple[GroupTrained, ...]
    """Groups of the steps since the checkpoint before, to be said closed when this one is durable."""


def snapshot(weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> Snapshot:
    """Copies in main memory, so that learning may go on while they are written."""
    return Snapshot(*({name: t.detach().to("cpu", copy=True) for name, t in ts.items()} for ts in (weights, optimizer_state)))


class CheckpointStore:
    """One run's checkpoints. Methods block. Raise Unavailable when the store refuses."""

    def __init__(self, store: Store, run: str, work_dir: Path) -> None:
        self._store, self._folder, self._work_dir = store, f"{run}/checkpoints", work_dir

    def path(self, step: int) -> str:
        """Below the store."""
        return f"{self._folder}/{step:08d}"

    def write(self, checkpoint: Checkpoint, tensors: Snapshot, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Durable when it returns. Writing the same step again replaces it.

        Raises Unavailable when ``should_stop`` turned true in the middle; then there is no such checkpoint.
        """
        facts = {
            "step": checkpoint.step,
            "line": checkpoint.line,
            "trained": [closed.model_dump(mode="json") for closed in checkpoint.trained],
        }
        self._store.remove(f"{self.path(checkpoint.step)}/{MANIFEST}")
        files = {
            WEIGHTS_FILE: _until(should_stop, safetensors_chunks(tensors.weights)),
            OPTIMIZER_FILE: _until(should_stop, safetensors_chunks(tensors.optimizer_state)),
        }
        publish_folder(self._store, self.path(checkpoint.step), files, facts)

    def newest(self) -> tuple[Checkpoint, Snapshot] | None:
        """The newest complete checkpoint; None: there is none. Raises Unavailable when its bytes are not what was written."""
        for name in reversed(self._store.folders(self._folder)):
            if name.isdigit() and self._store.exists(f"{self._folder}/{name}/{MANIFEST}"):
                return self._read(f"{self._folder}/{name}")
        return None

    def _read(self, path: str) -> tuple[Checkpoint, Snapshot]:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        local = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._work_dir))
        try:
            facts = fetch_folder(self._store, path, local)
            trained, step, line = facts["trained"], facts["step"], facts["line"]
            assert isinstance(trained, list) and isinstance(step, int) and isinstance(line, int)
            closed = tuple(GroupTrained.model_validate(fields, context={LENIENT: True}) for fields in trained)
            return Checkpoint(step, line, closed), Snapshot(load_file(local / WEIGHTS_FILE), load_file(local / OPTIMIZER_FILE))
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def prune(self, keep: int) -> None:
        """Leave the newest ``keep`` complete checkpoints; incomplete ones that are older go too."""
        names = [name for name in self._store.folders(self._folder) if name.isdigit()]
        complete = [name for name in names if self._store.exists(f"{self._folder}/{name}/{MANIFEST}")]
        for name in names:
            if len(complete) > keep and name < complete[-keep]:
                remove_folder(self._store, f"{self._folder}/{name}")


def _until(should_stop: Callable[[], bool], chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        if should_stop():
            raise Unavailable("the checkpoint was given up on request; nothing of it counts")
        yield chunk
