"""Groups that came to nothing: when there were so many in a row that going on would never end. Pure.

Two rules, each with a number in the run document. Every group failed and no episode completed: agents cannot work at all,
as with a mistyped entrypoint. Groups are dropped and no step is taken, for whatever reason: nothing can be learned.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from seamlessflow.contracts import DropReason, EpisodeEnded
from seamlessflow.run_config import AlgorithmSection

FAILED_STEPS, DROPPED_STEPS = 2, 20
"""Defaults of the two numbers, in steps' worth of groups."""
ADVICE = "; give tasks that the model sometimes solves, or set algorithm.drop_zero_variance = false"


@dataclass(slots=True)
class Losses:
    """Since what last went well."""

    num_failed: int = 0
    """Groups that failed since an episode completed or a step was taken."""
    dropped: Counter[DropReason] = field(default_factory=Counter)
    """Groups dropped since a step was taken."""
    last_failure: str = ""
    """The newest attempt that failed, in words."""

    def episode_completed(self) -> None:
        self.num_failed = 0

    def episode_failed(self, event: EpisodeEnded) -> None:
        self.last_failure = ": ".join(each for each in (event.episode, event.status.value, event.reason) if each)

    def group_dropped(self, reason: DropReason) -> None:
        self.dropped[reason] += 1
        self.num_failed += reason is DropReason.FAILED

    def step_taken(self) -> None:
        self.num_failed = 0
        self.dropped.clear()

    def verdict(self, algorithm: AlgorithmSection) -> str | None:
        """Why to go on no longer, for people; None: go on."""
        most_failed = algorithm.stop_after_failed_groups or FAILED_STEPS * algorithm.groups_per_step
        if self.num_failed >= most_failed:
            return f"the last {self.num_failed} groups failed: {self.last_failure or 'nobody said why'}"
        num_dropped = self.dropped.total()
        if num_dropped >= (algorithm.stop_after_dropped_groups or DROPPED_STEPS * algorithm.groups_per_step):
            counted = ", ".join(f"{count} {reason.value}" for reason, count in self.dropped.most_common())
            newest = f"; {self.last_failure}" if self.dropped[DropReason.FAILED] and self.last_failure else ""
            advice = ADVICE if self.dropped[DropReason.ZERO_VARIANCE] else ""
            return f"the last {num_dropped} groups were dropped without a step ({counted}){newest}{advice}"
        return None
