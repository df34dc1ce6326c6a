"""How fast the engine samples, and whether it has stopped: pure, time is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """Tokens per second between two looks, and how long nothing came although something should have."""

    num_tokens: int = 0
    looked_at: float = 0.0

    def tokens_per_second(self, num_tokens: int, now: float) -> float:
        """Rate since the last call; 0.0 at the first."""
        seconds, since = now - self.looked_at, num_tokens - self.num_tokens
        is_first, self.num_tokens, self.looked_at = self.looked_at == 0.0, num_tokens, now
        return 0.0 if is_first or seconds <= 0 else since / seconds


def stalled_for(*, num_sampling: int, is_frozen: bool, last_progress_at: float, now: float) -> float:
    """Seconds an engine that should sample has not; 0.0 when it has nothing to do or is frozen."""
    return now - last_progress_at if num_sampling and not is_frozen else 0.0
