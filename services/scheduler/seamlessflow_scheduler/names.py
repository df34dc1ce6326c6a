"""Ids and seeds: derived, never drawn, so that a scheduler that starts again says the very same events. Pure."""

from __future__ import annotations

import hashlib
import zlib

LONGEST_TASK_IN_ID = 80
"""A longer task id is cut and told apart by a digest: an episode id is one subject token of at most 128 characters."""


def group_id(task: str) -> str:
    """The group of a task: ``g-<task>``."""
    if len(task) <= LONGEST_TASK_IN_ID:
        return f"g-{task}"
    return f"g-{task[:LONGEST_TASK_IN_ID]}-{hashlib.sha256(task.encode()).hexdigest()[:16]}"


def episode_id(group: str, index: int, attempt: int) -> str:
    """``<group>-<index>-<attempt>``."""
    return f"{group}-{index}-{attempt}"


def episode_seed(run_seed: int, episode: str) -> int:
    """32 bits, the same for the same run seed and attempt on every machine."""
    return zlib.crc32(f"{run_seed}/{episode}".encode())
