"""Checkpoint folders in the store: their names and manifests, for the trainer and for command-line tools.

``{store}/{run}/checkpoints/{step:08d}-{line}-{attempt}/``: files, then ``manifest.json`` (``weights.manifest_folders``), which
names the claim it was written under, the checkpoint before it, and the account of the groups trained since that one. Earlier
releases had ``{step:08d}`` alone.

A folder counts only once the journal names it (``commit_history``); this module does not decide that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from seamlessflow.contracts import TrainedGroup
from seamlessflow.contracts.base import LENIENT
from seamlessflow.errors import WrongBytes
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import MANIFEST

OPTIMIZER_FILE = "optimizer.safetensors"
"""Beside ``weights.WEIGHTS_FILE``: AdamW's state and random generators."""
READS_THAT_AGREE = 3
"""Reads in a row that must find a fault of the same kind in the same file before the checkpoint counts as damaged."""
BARRIER = "99999999"
"""Folder that earlier releases take for the newest checkpoint and cannot read."""
_NAME = re.compile(r"(?P<step>\d{8,})(?:-(?P<line>\d+)-(?P<attempt>[A-Za-z0-9_-]+))?\Z")


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """The parts of a folder's name."""

    step: int
    line: int | None
    """None: the folder of an earlier release, which names the step alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The facts of a checkpoint, as its manifest holds them."""

    step: int
    line: int
    trained: tuple[TrainedGroup, ...]
    """Groups of the steps since the checkpoint before: closed once this one is committed."""
    nonce: str = ""
    """Nonce of the claim it was written under. Empty: an earlier release wrote it."""
    predecessor: str | None = None
    """Path of the checkpoint before it. None: it is the first."""


def checkpoints_path(run: str) -> str:
    """Folder of all checkpoints of a run below the store."""
    return f"{run}/checkpoints"


def checkpoint_path(run: str, step: int, line: int, attempt: str) -> str:
    """Folder of one attempt to write a checkpoint. Only its writer may make up the path; others read it from the journal."""
    return f"{checkpoints_path(run)}/{step:08d}-{line}-{attempt}"


def parse_name(name: str) -> CheckpointName | None:
    """The parts of a checkpoint folder's name. None: another folder, BARRIER included."""
    known = None if name == BARRIER else _NAME.match(name)
    if known is None:
        return None
    return CheckpointName(int(known["step"]), None if known["line"] is None else int(known["line"]))


def parse_checkpoint(path: str, facts: Mapping[str, object]) -> Checkpoint:
    """The checkpoint that a manifest describes. Raises WrongBytes."""
    try:
        step, line, nonce, predecessor = facts["step"], facts["line"], facts.get("nonce", ""), facts.get("predecessor")
        listed = facts["trained"]
        if not (isinstance(step, int) and isinstance(line, int) and isinstance(nonce, str) and isinstance(listed, list)):
            raise ValueError("its step, line, nonce or account is of the wrong type")
        if not (predecessor is None or isinstance(predecessor, str)):
            raise ValueError(f"its predecessor is {predecessor!r}")
        trained = tuple(TrainedGroup.model_validate(fields, context={LENIENT: True}) for fields in listed)
    except (KeyError, ValueError, TypeError, AttributeError) as wrong:
        file = f"{path}/{MANIFEST}"
        raise WrongBytes(f"{file} is not the manifest of a checkpoint: {wrong}; nothing was loaded", file) from wrong
    return Checkpoint(step, line, trained, nonce, predecessor)


def read_facts(store: Store, path: str) -> Checkpoint | None:
    """The checkpoint that a folder's manifest describes. None: it has no readable manifest, so it is no checkpoint."""
    try:
        return parse_checkpoint(path, json.loads(store.read(f"{path}/{MANIFEST}")))
    except (FileNotFoundError, ValueError, WrongBytes):
        return None
