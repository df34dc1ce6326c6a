"""Applies events to a run and publishes due events until none is left; builds the ends of episodes."""

from __future__ import annotations

from seamlessflow.contracts import EpisodeEnded, EpisodeEvaluated, EpisodeOpened, EpisodeStatus, Event
from seamlessflow_scheduler.admission.decisions import NOTHING, Observation, next_events
from seamlessflow_scheduler.admission.run_state import RunProgress
from tests.services.scheduler.scheduler_world import RUN


def told(progress: RunProgress, *events: Event, seen: Observation = NOTHING) -> list[Event]:
    """Apply events, then publish due events until none is left; returns the published ones."""
    for event in events:
        progress.apply(event)
    published: list[Event] = []
    while due := next_events(progress, seen):
        for event in due:
            progress.apply(event)
        published += due
    return published


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
