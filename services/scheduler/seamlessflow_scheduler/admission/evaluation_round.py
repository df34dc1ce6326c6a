"""One evaluation round: held-out tasks, each done once. A fold over events; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from seamlessflow.contracts import EpisodeEvaluated, EvaluationEnded, TaskSubmitted

BEFORE, AFTER = "before", "after"
ROUNDS = (BEFORE, AFTER)


@dataclass(slots=True)
class EvaluationRound:
    """One round. ``over``: EvaluationEnded was published, or training began before it; no task is taken any more."""

    name: str
    waiting: dict[str, TaskSubmitted] = field(default_factory=dict)
    num_admitted: int = 0
    unevaluated: set[str] = field(default_factory=set)
    """Attempts that were opened and whose EpisodeEvaluated has not come."""
    results: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    """Group to environment tag and reward of its last attempt."""
    versions: set[int] = field(default_factory=set)
    began_at: float | None = None
    last_at: float = 0.0
    over: bool = False

    @property
    def has_tasks(self) -> bool:
        """Whether any task of the round is waiting or was admitted."""
        return bool(self.waiting) or self.num_admitted > 0

    @property
    def is_done(self) -> bool:
        """Every known task has a final attempt, and every attempt was evaluated."""
        return not self.waiting and not self.unevaluated and len(self.results) == self.num_admitted

    def admit(self, task: str, at: float) -> TaskSubmitted | None:
        """Take a task out of waiting; None when it is not (or no longer) there."""
        taken = self.waiting.pop(task, None)
        if taken is not None:
            self.num_admitted += 1
            self.began_at = at if self.began_at is None else min(at, self.began_at)
        return taken

    def evaluated(self, event: EpisodeEvaluated, *, final: bool, at: float) -> None:
        """An attempt was evaluated; only a final one gives the result of its task."""
        self.unevaluated.discard(event.episode)
        self.versions.update(event.weights_versions)
        self.last_at = max(self.last_at, at)
        if final:
            self.results[event.origin.group] = (event.origin.env, event.reward)

    def close(self) -> None:
        """No task is taken any more."""
        self.over = True
        self.waiting.clear()

    def ended(self, run: str) -> EvaluationEnded:
        """The result of the round. An episode without a reward counts as 0, and is counted as failed."""
        by_env: dict[str, list[float]] = {}
        for env, reward in self.results.values():
            by_env.setdefault(env, []).append(reward or 0.0)
        return EvaluationEnded(
            run=run,
            round=self.name,
            num_episodes=len(self.results),
            num_failed=sum(reward is None for _, reward in self.results.values()),
            mean_reward={env: sum(rewards) / len(rewards) for env, rewards in sorted(by_env.items())},
            weights_versions=tuple(sorted(self.versions)),
            wall_seconds=max(0.0, self.last_at - (self.began_at if self.began_at is not None else self.last_at)),
        )
