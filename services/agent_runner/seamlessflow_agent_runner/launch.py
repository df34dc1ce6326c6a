"""What to start and in which zygote, and the two ways in which that fails."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


class NotStarted(Exception):
    """No agent could be started; the message says why, for people."""


class ZygoteLost(Exception):
    """The process that agents are forked from died, and they with it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. ``argv`` None: the zygote's own entrypoint."""

    name: str
    argv: tuple[str, ...] | None
    keep_result: bool
    cwd: str
    environment: dict[str, str]
    memory_bytes: int

    def packet(self) -> bytes:
        """The zygote's order to start it."""
        return json.dumps(
            {
                "start": self.name, "argv": self.argv, "keep_result": self.keep_result, "cwd": self.cwd,
                "env": self.environment, "memory_bytes": self.memory_bytes,
            }
        ).encode()  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """Which zygote: what it imports, and the environment it imports it in."""

    entrypoint: str | None
    environment: tuple[tuple[str, str], ...] = field(default=())
