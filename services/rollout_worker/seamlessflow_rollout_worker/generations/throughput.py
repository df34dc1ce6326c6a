"""How fast the engine samples, and whether it has stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Activity:
    """What the engine was asked and what came. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_tokens = 0
        """Sampled since the start."""
        self.num_sampling = 0
        """Generations the engine is asked to sample now."""
        self.last_at = clock()
        """When the last token came, or when there was last a reason for none."""
        self._clock = clock

    def begin(self) -> None:
        """The engine is asked for one more generation."""
        if not self.num_sampling:
            self.note(0)
        self.num_sampling += 1

    def note(self, num_tokens: int) -> None:
        """Tokens came; 0: there was a reason for none until now."""
        self.num_tokens += num_tokens
        self.last_at = self._clock()

    def end(self) -> None:
        """The engine is done with one."""
        self.num_sampling -= 1

    def silent_seconds(self) -> float:
        """How long nothing came although something should have; 0.0 when nothing is asked."""
        return self._clock() - self.last_at if self.num_sampling else 0.0


@dataclass(slots=True)
class Meter:
    """Tokens per second between two looks."""

    num_tokens: int = 0
    looked_at: float | None = None

    def tokens_per_second(self, num_tokens: int, now: float) -> float:
        """Rate since the last look; 0.0 at the first, and after a count that fell (another engine)."""
        before, since = self.looked_at, num_tokens - self.num_tokens
        self.num_tokens, self.looked_at = num_tokens, now
        return 0.0 if before is None or now <= before else max(0, since) / (now - before)
