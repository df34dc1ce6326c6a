"""Checkpoints in the store: writes, reads and prunes them, one folder for each attempt to write one.

``{store}/{run}/checkpoints/{step:08d}-{line}-{nonce}/`` = ``model.safetensors`` (float32), ``optimizer.safetensors`` (AdamW
and random generators), then ``manifest.json`` with digests, the claim it was written under, the checkpoint before it, and the
account of the groups trained since that one. In a LoRA run ``model.safetensors`` has the adapters alone. No pickle.

A folder counts only once the journal names it (``StepsCommitted``, ``RolledBack``): a late writer's folder is never read.
Earlier releases had one folder for each step and took the highest one; a folder above all steps makes them stop.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from seamlessflow.checkpoints.checkpoint_folders import (
    BARRIER,
    OPTIMIZER_FILE,
    READS_THAT_AGREE,
    Checkpoint,
    checkpoint_path,
    checkpoints_path,
    parse_checkpoint,
    parse_name,
    read_facts,
)
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.errors import Damaged, Missing, StoreFault, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, fetch_folder, publish_folder, remove_folder
from seamlessflow_trainer.weights.safetensors_writer import safetensors_chunks

BARRIER_TEXT = (
    "this run is trained by a later release of SeamlessFlow, whose commits this one would undo; nothing was changed. "
    "Start the later release"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of a learner's tensors, which no longer change."""

    weights: Mapping[str, Tensor]
    optimizer_state: Mapping[str, Tensor]


def snapshot(weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> Snapshot:
    """Copies in main memory, so that the learner may change while they are written."""
    return Snapshot(*({name: t.detach().to("cpu", copy=True) for name, t in ts.items()} for ts in (weights, optimizer_state)))


class CheckpointStore:
    """One run's checkpoints. Methods block, and raise Unavailable when the store fails."""

    def __init__(self, store: Store, run: str, work_dir: Path) -> None:
        self._store, self._run, self._folder, self._work_dir = store, run, checkpoints_path(run), work_dir

    def write(self, checkpoint: Checkpoint, tensors: Snapshot, should_stop: Callable[[], bool] = lambda: False) -> str:
        """Write a checkpoint; returns its path, once it is durable. It is not committed yet.

        Each attempt has its own folder: an abandoned store call of an earlier attempt may still be carried out at any time.
        Raises Unavailable when ``should_stop`` turned true in the middle; then there is no such checkpoint.
        """
        path = checkpoint_path(self._run, checkpoint.step, checkpoint.line, uuid.uuid4().hex[:16])
        facts = {
            "step": checkpoint.step,
            "line": checkpoint.line,
            "nonce": checkpoint.nonce,
            "predecessor": checkpoint.predecessor,
            "trained": [group.model_dump(mode="json") for group in checkpoint.trained],
        }
        files = {
            WEIGHTS_FILE: _until(should_stop, safetensors_chunks(tensors.weights)),
            OPTIMIZER_FILE: _until(should_stop, safetensors_chunks(tensors.optimizer_state)),
        }
        publish_folder(self._store, path, files, facts)
        return path

    def read(self, path: str) -> tuple[Checkpoint, Snapshot]:
        """The checkpoint in a folder, every byte checked.

        Raises Damaged where several reads in a row find a fault of the same kind in the same file, in whichever range of it.
        """
        faults: list[StoreFault] = []
        while len(faults) < READS_THAT_AGREE:
            try:
                return self._read(path)
            except StoreFault as wrong:
                faults.append(wrong)
        if len({(type(fault), fault.path) for fault in faults}) == 1:
            raise Damaged(f"checkpoint {path} in store {self._store.url}: {faults[-1]} ({READS_THAT_AGREE} reads agree)")
        raise Unavailable(f"checkpoint {path}: each read finds another fault: {'; '.join(map(str, faults))}")

    def _read(self, path: str) -> tuple[Checkpoint, Snapshot]:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        local = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._work_dir))
        try:
            checkpoint = parse_checkpoint(path, self._fetch(path, local))
            return checkpoint, Snapshot(load_file(local / WEIGHTS_FILE), load_file(local / OPTIMIZER_FILE))
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def _fetch(self, path: str, local: Path) -> dict[str, object]:
        try:
            return fetch_folder(self._store, path, local)
        except FileNotFoundError as wrong:
            raise Missing(f"{path}/{MANIFEST} is not in the store", f"{path}/{MANIFEST}") from wrong

    def newest_of_earlier_release(self) -> str | None:
        """Path of the highest complete checkpoint that a release without claims wrote. None: there is none."""
        for name in reversed(self._store.folders(self._folder)):
            if name.isdigit() and name != BARRIER and self._is_complete(name):
                return f"{self._folder}/{name}"
        return None

    def bar_earlier_releases(self) -> None:
        """Make a trainer of an earlier release that joins this run stop before it publishes anything, with BARRIER_TEXT.

        It takes the highest number for the newest checkpoint and parses each entry of the account as GroupTrained. The error
        that ends it shows the invalid run name in full, and that name is BARRIER_TEXT.
        """
        path = f"{self._folder}/{BARRIER}/{MANIFEST}"
        if not self._store.exists(path):
            trained = [{"run": BARRIER_TEXT, "group": "none", "step": 0, "episodes": []}]  # an invalid run name
            facts = {"step": int(BARRIER), "line": 0, "trained": trained, "files": {}}
            self._store.write(path, json.dumps(facts, indent=1).encode())

    def unexplained(self, history: CommitHistory) -> list[str]:
        """Complete checkpoints whose claim or predecessor the journal does not hold, because it lost its end.

        A checkpoint whose claim it holds is explained: its writer did not reach its commit.
        """
        named = {commit.checkpoint for commit in history.named}
        found = []
        for name in self._store.folders(self._folder):
            path, known = f"{self._folder}/{name}", parse_name(name)
            if known is None or known.line is None or path in named or history.passes_over(path):
                continue
            facts = read_facts(self._store, path)
            if facts is not None and not history.knows(nonce=facts.nonce, predecessor=facts.predecessor):
                found.append(path)
        return found

    def prune(self, history: CommitHistory, keep: int, line: int) -> None:
        """Remove committed checkpoints older than the ``keep`` newest, and uncommitted ones of incarnations before ``line``,
        whose writers cannot commit any more. ``history``: as of the newest commit, which is ours."""
        named, kept = {commit.checkpoint for commit in history.named}, set(history.kept(keep))
        for name in self._store.folders(self._folder):
            path, known = f"{self._folder}/{name}", parse_name(name)
            if known is None or path in kept:
                continue
            if path in named or (known.line or 0) < line:
                remove_folder(self._store, path)

    def _is_complete(self, name: str) -> bool:
        return self._store.exists(f"{self._folder}/{name}/{MANIFEST}")


def _until(should_stop: Callable[[], bool], chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        if should_stop():
            raise Unavailable("the checkpoint was given up on request; nothing of it counts")
        yield chunk
