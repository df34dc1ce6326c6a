"""What clients ask for and do not get, once each for the log: agents ask the same with every call."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

log = structlog.get_logger()


class Notes:
    """Of one process."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, notes: Iterable[str], *, env: str) -> None:
        """Log those that are new. ``env``: of the first agent that asked."""
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                log.warning("request.not_followed", env=env, reason=note)
