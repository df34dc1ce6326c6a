"""Streams and consumers that nats-server keeps for us, and the handlers of each event: derived from the wiring table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from seamlessflow.bus.base import ConsumerSpec, StreamSpec

from .base import Event, Service
from .routes import (
    BY_EVENT,
    CONTROL_QUEUE,
    CONTROL_STREAM,
    CONTROL_SUBJECTS,
    JOURNAL,
    JOURNAL_SUBJECTS,
    MANAGER,
    QUEUE_OF,
    QUEUES,
    RUNNER,
    SCHEDULER,
    TRAINER,
    WORKER,
)
from .subjects import tokens_of
from .tags import places


def journal_stream(run: str) -> str:
    """Name of a run's journal stream."""
    return JOURNAL.format(run=run)


def queue_stream(service: Service, run: str) -> str:
    """Name of a service's work queue in a run."""
    return f"Q{QUEUE_OF[service].role}_{run}"


def consumer_name(service: Service, part: str = "") -> str:
    """Name of one consumer. ``part``: an environment tag, or a shard; see ``generation_consumer`` for the rollout-worker's."""
    return QUEUE_OF[service].consumer.format(part=part.replace(".", "-"))


def generation_consumer(tags: Iterable[str], tag: str, bucket: int) -> str:
    """Name of the consumer of one work tag and bucket. ``tags``: all work tags of the run."""
    return consumer_name(WORKER, f"{places(tags)[tag]}.{bucket}")


def unowned_bucket(num_buckets: int) -> int | None:
    """The unowned affinity bucket. It has the first calls of episodes of several; any worker with room takes them, and the
    next calls go to a bucket of that worker. None: with one bucket there is nothing to choose from.
    """
    return num_buckets if num_buckets > 1 else None


def all_buckets(num_buckets: int) -> range:
    """Of a run with so many affinity buckets, the unowned one included."""
    return range(num_buckets + (unowned_bucket(num_buckets) is not None))


def control_streams() -> tuple[StreamSpec, StreamSpec]:
    """The permanent stream and the scheduler's queue over it."""
    return (
        StreamSpec(CONTROL_STREAM, subjects=(CONTROL_SUBJECTS,)),
        StreamSpec(CONTROL_QUEUE, source=CONTROL_STREAM, source_filters=(CONTROL_SUBJECTS,)),
    )


def run_streams(run: str, *, max_bytes: int = -1) -> list[StreamSpec]:
    """The journal and all work queues of a run."""
    queues = [
        StreamSpec(
            queue_stream(q.service, run), source=journal_stream(run), source_filters=[f.format(run=run) for f in q.filters]
        )
        for q in QUEUES
    ]
    return [StreamSpec(journal_stream(run), subjects=(JOURNAL_SUBJECTS.format(run=run),), max_bytes=max_bytes), *queues]


def run_consumers(run: str, *, envs: Sequence[str], shards: int, tags: Sequence[str], buckets: int) -> list[ConsumerSpec]:
    """Every consumer of a run. Filters are never edited afterwards."""
    by_name: Mapping[Service, Mapping[str, str]] = {
        SCHEDULER: {consumer_name(SCHEDULER): ""},
        RUNNER: {consumer_name(RUNNER, env): env for env in envs},
        MANAGER: {consumer_name(MANAGER, str(shard)): str(shard) for shard in range(shards)},
        WORKER: {generation_consumer(tags, tag, bucket): f"{tag}.{bucket}" for tag in tags for bucket in all_buckets(buckets)},
        TRAINER: {consumer_name(TRAINER): ""},
    }
    return [
        ConsumerSpec(
            stream=queue_stream(queue.service, run),
            name=name,
            filters=[f.format(run=run, part=part, part_subject=part) for f in queue.consumer_filters],
            prioritized=queue.prioritized,
        )
        for queue in QUEUES
        for name, part in by_name[queue.service].items()
    ]


def consumers_of(event: type[Event]) -> tuple[Service, ...]:
    """The services that have this event in a queue."""
    route = BY_EVENT[event]
    if route.stream == CONTROL_STREAM:
        return (SCHEDULER,)
    return tuple(queue.service for queue in QUEUES if any(overlaps(route.subject, pattern) for pattern in queue.filters))


def overlaps(template: str, pattern: str) -> bool:
    """Whether the subjects of a template go to a filter pattern (with * and >).

    A placeholder meets a literal only where both stand for the run: ids are never the literals of another subject.
    """
    ours, theirs = tokens_of(template), pattern.split(".")
    for position, token in enumerate(theirs):
        if token == ">":
            return len(ours) > position
        if position >= len(ours) or not (token == "*" or token.startswith("{") or token == ours[position]):
            return False
    return len(ours) == len(theirs)
