"""A scheduler that is told events and says what is due until it is silent, and the ends of episodes to tell it."""

from __future__ import annotations

from seamlessflow.contracts import EpisodeEnded, EpisodeEvaluated, EpisodeOpened, EpisodeStatus, Event
from seamlessflow_scheduler.admission.decisions import NOTHING, Observation, decide
from seamlessflow_scheduler.admission.run_state import Progress
from tests.services.scheduler.scheduler_world import RUN


def told(progress: Progress, *events: Event, seen: Observation = NOTHING) -> list[Event]:
    """Apply events, then everything that the scheduler says in turn until it is silent; returns what it said."""
    for event in events:
        progress.apply(event)
    said: list[Event] = []
    while due := decide(progress, seen):
        for event in due:
            progress.apply(event)
        said += due
    return said


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def ended(opened: EpisodeOpened, status: EpisodeStatus = EpisodeStatus.COMPLETED, reward: float | None = 1.0) -> EpisodeEnded:
    reward = reward if status is EpisodeStatus.COMPLETED else None
    return EpisodeEnded(run=RUN, episode=opened.episode, shard=opened.shard, origin=opened.origin, status=status, reward=reward)


def evaluated(opened: EpisodeOpened, reward: float | None) -> EpisodeEvaluated:
    status = EpisodeStatus.COMPLETED if reward is not None else EpisodeStatus.DEADLINE
    return EpisodeEvaluated(
        run=RUN,
        episode=opened.episode,
        origin=opened.origin,
        status=status,
        reward=reward,
        num_sampled=3,
        weights_versions=(0,),
    )
