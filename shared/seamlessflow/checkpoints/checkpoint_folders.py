"""Folders of checkpoints in the store: their names, and what their manifests hold. For the trainer and for people's tools.

``{store}/{run}/checkpoints/{step:08d}-{line}-{attempt}/``: files, then ``manifest.json`` (``weights.folders``), which names the
claim that it was written under, the checkpoint before it, and the account of the groups that it is the first to hold. Earlier
releases had ``{step:08d}`` alone.

A folder counts only once the journal names it (``commit_history``); nothing here decides that.
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
"""So many reads in a row that find a fault of the same kind in the same file, and the checkpoint is damaged."""
BARRIER = "99999999"
"""Folder that earlier releases take for the newest checkpoint, and cannot read."""
_NAME = re.compile(r"(?P<step>\d{8,})(?:-(?P<line>\d+)-(?P<attempt>[A-Za-z0-9_-]+))?\Z")


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """What a folder's name tells."""

    step: int
    line: int | None
    """None: of an earlier release, whose folders name the step alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint is of."""

    step: int
    line: int
    trained: tuple[TrainedGroup, ...]
    """Groups of the steps since the checkpoint before: closed once this one is committed."""
    nonce: str = ""
    """Of the claim it was written under. Empty: by an earlier release."""
    predecessor: str | None = None
    """Path of the checkpoint that training went on from. None: there was none."""


def checkpoints_path(run: str) -> str:
    """Folder of all checkpoints of a run below the store."""
    return f"{run}/checkpoints"


def checkpoint_path(run: str, step: int, line: int, attempt: str) -> str:
    """Folder of one try to write a checkpoint. Only its writer may make up the path: others have it from the journal."""
    return f"{checkpoints_path(run)}/{step:08d}-{line}-{attempt}"


def parse_name(name: str) -> CheckpointName | None:
    """None: it is no checkpoint's, or the one that makes earlier releases stop."""
    known = None if name == BARRIER else _NAME.match(name)
    if known is None:
        return None
    return CheckpointName(int(known["step"]), None if known["line"] is None else int(known["line"]))


def parse_checkpoint(path: str, facts: Mapping[str, object]) -> Checkpoint:
    """What a manifest has beside its files. Raises WrongBytes."""
    try:
        step, line, nonce, predecessor = facts["step"], facts["line"], facts.get("nonce", ""), facts.get("predecessor")
        listed = facts["trained"]
        if not (isinstance(step, int) and isinstance(line, int) and isinstance(nonce, str) and isinstance(listed, list)):
            raise ValueError("a step, line, nonce or account that makes no sense")
        if not (predecessor is None or isinstance(predecessor, str)):
            raise ValueError(f"the predecessor {predecessor!r}")
        trained = tuple(TrainedGroup.model_validate(fields, context={LENIENT: True}) for fields in listed)
    except (KeyError, ValueError, TypeError, AttributeError) as wrong:
        file = f"{path}/{MANIFEST}"
        raise WrongBytes(f"{file} is not the manifest of a checkpoint: {wrong}; nothing was loaded", file) from wrong
    return Checkpoint(step, line, trained, nonce, predecessor)


def read_facts(store: Store, path: str) -> Checkpoint | None:
    """What a folder's manifest has beside its files. None: there is none that can be read, so the folder is no checkpoint."""
    try:
        return parse_checkpoint(path, json.loads(store.read(f"{path}/{MANIFEST}")))
    except (FileNotFoundError, ValueError, WrongBytes):
        return None
