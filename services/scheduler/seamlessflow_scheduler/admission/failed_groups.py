"""Failed and dropped groups in a row: decides when so many failed that the run should end. Pure.

Two rules, each with a number in the run document. Every group failed and no episode completed: agents cannot work at all,
as with a mistyped entrypoint. Groups are dropped and no step is taken, for any reason: nothing can be learned. That is no
failure when most of them had equal rewards, and the run has learned (it took a step before) or need not (all solved).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import DropReason, EpisodeEnded

FAILED_STEPS, DROPPED_STEPS = 2, 20
"""Defaults of the two numbers, in steps' worth of groups."""
TOP_REWARD = 1.0
"""From here on a task counts as solved."""
ADVICE = "; give tasks that the model sometimes solves, or set algorithm.drop_zero_variance = false"


@dataclass(slots=True)
class FailureStreak:
    """Counts since the last success: a completed episode or a step."""

    num_failed: int = 0
    """Groups that failed since an episode completed or a step was taken."""
    dropped: Counter[DropReason] = field(default_factory=Counter)
    """Groups dropped since a step was taken."""
    num_solved: int = 0
    """Of those, groups of equal rewards at the top."""
    has_stepped: bool = False
    """A step was ever taken."""
    last_failure: str = ""
    """Text of the newest failed attempt."""

    def episode_completed(self) -> None:
        """Agents can work: no group counts as failed in a row."""
        self.num_failed = 0

    def episode_failed(self, event: EpisodeEnded) -> None:
        """Keep the reason for the failure text."""
        self.last_failure = ": ".join(each for each in (event.episode, event.status.value, event.reason) if each)

    def group_dropped(self, reason: DropReason, reward: float | None = None) -> None:
        """Count a dropped group. ``reward``: of any completed member; where variance is zero, that of all."""
        self.dropped[reason] += 1
        self.num_solved += reason is DropReason.ZERO_VARIANCE and reward is not None and reward >= TOP_REWARD
        self.num_failed += reason is DropReason.FAILED

    def step_taken(self) -> None:
        """Start counting anew."""
        self.num_failed = 0
        self.dropped.clear()
        self.num_solved = 0
        self.has_stepped = True

    def nothing_left(self, algorithm: AlgorithmSection) -> bool:
        """Whether enough groups were dropped because there is nothing more to learn: a good end."""
        num_equal = self.dropped[DropReason.ZERO_VARIANCE]
        return (
            self._too_many_dropped(algorithm)
            and 2 * num_equal > self.dropped.total()
            and (self.has_stepped or self.num_solved == num_equal)
        )

    def failure_text(self, algorithm: AlgorithmSection) -> str | None:
        """The failure that should stop the run, as text; None: there is none."""
        most_failed = algorithm.stop_after_failed_groups or FAILED_STEPS * algorithm.groups_per_step
        if self.num_failed >= most_failed:
            return f"the last {self.num_failed} groups failed: {self.last_failure or 'no reason was given'}"
        if self._too_many_dropped(algorithm) and not self.nothing_left(algorithm):
            counted = ", ".join(f"{count} {reason.value}" for reason, count in self.dropped.most_common())
            newest = f"; {self.last_failure}" if self.dropped[DropReason.FAILED] and self.last_failure else ""
            advice = ADVICE if self.dropped[DropReason.ZERO_VARIANCE] else ""
            return f"the last {self.dropped.total()} groups were dropped without a step ({counted}){newest}{advice}"
        return None

    def _too_many_dropped(self, algorithm: AlgorithmSection) -> bool:
        return self.dropped.total() >= (algorithm.stop_after_dropped_groups or DROPPED_STEPS * algorithm.groups_per_step)
