"""An open group with its members' attempts, and the ids and seeds derived from a task. Pure.

Always true: ids and seeds are derived, never drawn, so a scheduler that starts again publishes the very same events.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field

from seamlessflow.contracts import TaskSubmitted

LONGEST_TASK_IN_ID = 80
"""A longer task id is cut and gets a digest: an episode id is one subject token of at most 128 characters."""


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


@dataclass(slots=True)
class OpenGroup:
    """A group that is not closed yet. ``attempts``: the newest attempt of each member."""

    task: TaskSubmitted
    evaluation: str | None
    attempts: list[int]
    final: list[bool]
    bucket: int = 0
    reward: float | None = None
    """Of the member that completed last."""
    expected_tokens: int | None = None
    is_long: bool = False
    measured: set[tuple[int, int]] = field(default_factory=set)
    """Members and attempts whose lengths are known."""

    @property
    def is_finished(self) -> bool:
        """Whether every member has a final attempt."""
        return all(self.final)
