"""Reading a run for a manager: its model folder from the store, its events from the journal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import CallRequested, EpisodeEnded, Event, RunStarted, SegmentSampled, Service
from seamlessflow.contracts.routes import QUEUE_OF
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BadInput, ConfigError, Unavailable
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import fetch_folder, model_path

from .rendering.base import Renderer
from .rendering.model_renderer import load_renderer
from .replay_comparison import consequences_of
from .trajectory.manager import Manager

log = structlog.get_logger()

POLL_SECONDS = 0.5
RECENT_SECONDS = 6.0
"""Of a shard's events, how many of the newest are looked at again by who takes it over."""


async def started_at(bus: Bus, run: str) -> datetime:
    """When the run's journal began: the one time that its template shows. Raises ConfigError for a run that has not begun.

    Another time would make another prompt of the same journal, for who takes over on another day.
    """
    record = await bus.first(journal_stream(run), subject_filter(RunStarted, run=run))
    if record is None:
        raise ConfigError(f"run {run!r} has not started")
    return datetime.fromtimestamp(record.time, UTC)


async def fetch_renderer(bus: Bus, store: Store, run: str, config: RunConfig, work_dir: Path) -> Renderer:
    """The renderer of a run's model; waits until the trainer has published the model folder, saying so."""
    folder = work_dir / "models" / run
    waited = 0
    while True:
        try:
            await asyncio.to_thread(fetch_folder, store, model_path(run), folder)
            return await asyncio.to_thread(load_renderer, folder, config.model.name, now=await started_at(bus, run))
        except (FileNotFoundError, Unavailable) as wrong:
            if waited % 20 == 0:
                log.info("model.awaited", run=run, path=model_path(run), reason=str(wrong))
        waited += 1
        await asyncio.sleep(POLL_SECONDS)


async def read_events(bus: Bus, journal: Journal, run: str, filters: Sequence[str]) -> AsyncIterator[tuple[str, Event | None]]:
    """(subject, event) in journal order. None: it cannot be decoded, and was dead-lettered by its queue."""
    async for record in bus.read(journal_stream(run), filters=filters):
        try:
            yield record.subject, await journal.open(record)
        except BadInput as wrong:
            log.warning("journal.unreadable", subject=record.subject, seq=record.seq, reason=str(wrong))
            yield record.subject, None


@dataclass(frozen=True, slots=True)
class Folded:
    """``recent``: what the newest events lead to. A manager that died may have been delivered them and said nothing."""

    num_events: int
    recent: list[Event]


async def fold_shard(bus: Bus, journal: Journal, run: str, shard: str, manager: Manager) -> Folded:
    """Bring a manager to where the journal is.

    Only open episodes are read: the ends come first, by subject alone, and ended episodes are kept as names.
    """
    ended_subject = subject_filter(EpisodeEnded, run=run, shard=shard)
    ended = {record.subject.split(".")[4] async for record in bus.read(journal_stream(run), filters=(ended_subject,))}
    manager.mark_ended(ended)
    taken, recent = 0, deque[tuple[float, list[Event]]]()
    async for record in bus.read(journal_stream(run), filters=shard_filters(run, shard)):
        if _episode_of(record.subject) in ended:
            continue
        try:
            event = await journal.open(record)
        except BadInput as wrong:
            log.warning("journal.unreadable", subject=record.subject, seq=record.seq, reason=str(wrong))
            continue
        recent.append((record.time, consequences_of(manager, event)))
        while recent[0][0] < record.time - RECENT_SECONDS:
            recent.popleft()
        taken += 1
        await asyncio.sleep(0)  # the presence is renewed meanwhile, and other shards are served
    return Folded(taken, [event for _, events in recent for event in events])


async def refold_episode(bus: Bus, journal: Journal, event: Event, manager: Manager) -> None:
    """Apply the journal of an event's episode from the beginning, and put what it gives in the place of what is known.

    Beside what is known: that stays when the journal cannot be read, and answers are hinted meanwhile.
    """
    shard, episode = getattr(event, "shard", "*"), str(getattr(event, "episode", ""))
    folded = manager.empty()
    calls = subject_filter(CallRequested, run=event.run, shard=shard, episode=episode)  # and, on the same level, the end
    segments = subject_filter(SegmentSampled, run=event.run, shard=shard, episode=episode)
    async for _, stored in read_events(bus, journal, event.run, (calls, segments)):
        if stored is not None:
            consequences_of(folded, stored)
    manager.adopt(episode, folded)


def shard_filters(run: str, shard: str) -> tuple[str, ...]:
    """Subjects of all that a manager of a shard hears."""
    return tuple(each.format(run=run, part=shard) for each in QUEUE_OF[Service.TRAJECTORY_MANAGER].consumer_filters)


def _episode_of(subject: str) -> str:
    tokens = subject.split(".")
    return tokens[5] if tokens[2] == "ev" else tokens[4]
