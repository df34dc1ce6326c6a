"""The wiring table: which event goes on which subject, who says it, who acts on it. The only place with subjects.

Streams, queues, consumers, schemas, permissions and docs/events.md are derived from ``ROUTES`` and ``QUEUES``.
Templates are filled with the event's fields (``{origin.group}`` reaches into a nested record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from ..bus.base import ConsumerSpec, Message, StreamSpec
from . import calls, episodes, fleet, generations, runs, samples, training
from .base import Event, Service

RUNNER, WORKER, MANAGER = Service.AGENT_RUNNER, Service.ROLLOUT_WORKER, Service.TRAJECTORY_MANAGER
SCHEDULER, TRAINER, USER = Service.SCHEDULER, Service.TRAINER, Service.USER

CONTROL_STREAM = "CTL"
CONTROL_QUEUE = "QCTL"
CONTROL_CONSUMER = "scheduler"
NODES_BUCKET, LEASES_BUCKET, WEIGHTS_BUCKET, RUNS_BUCKET = "NODES", "LEASES", "WEIGHTS", "RUNS"
BUCKETS = (NODES_BUCKET, LEASES_BUCKET, WEIGHTS_BUCKET, RUNS_BUCKET)

HINT_POKE = "sfhint.poke.{node}"
"""Core NATS, may be lost: re-read your lease now."""
HINT_WEIGHTS = "sfhint.weights.{run}"
"""Core NATS, may be lost: re-read the weights' head now."""


def inbox_prefix(service: Service) -> str:
    """Where a service's answers and hints arrive. One for each, so that permissions keep them apart."""
    return f"_INBOX_{service.value}"


@dataclass(frozen=True, slots=True)
class Route:
    """One event's wiring."""

    event: type[Event]
    subject: str
    said_by: tuple[Service, ...]
    message_id: str
    """Template of the de-duplication id; together with the run it names one fact."""
    once: str | None = None
    """Subject template over which it may exist only once (appended with expected sequence 0). None: not limited."""


_SEGMENT = "sf.{run}.ev.segment.{shard}.{episode}.{generation}"
_CLOSED = "sf.{run}.ev.group.{group}.closed"

ROUTES: tuple[Route, ...] = (
    Route(runs.RunRequested, "sf.ctl.run.{run}.requested", (USER,), "requested", once="sf.ctl.run.{run}.requested"),
    Route(runs.RunStopRequested, "sf.ctl.run.{run}.stop", (USER, TRAINER, WORKER, MANAGER), "stop"),
    Route(runs.RunStarted, "sf.{run}.ev.run.started", (SCHEDULER,), "started", once="sf.{run}.ev.run.started"),
    Route(runs.RunEnded, "sf.{run}.ev.run.ended", (SCHEDULER,), "ended", once="sf.{run}.ev.run.ended"),
    Route(runs.TaskSubmitted, "sf.{run}.task.{env}.{task}", (USER,), "task.{task}"),
    Route(runs.TasksEnded, "sf.{run}.ev.tasks.ended", (USER,), "tasks-ended"),
    Route(
        runs.EvaluationEnded,
        "sf.{run}.ev.evaluation.{round}.ended",
        (SCHEDULER,),
        "evaluation.{round}",
        once="sf.{run}.ev.evaluation.{round}.ended",
    ),
    Route(runs.DeadLetter, "sf.{run}.dead.{service}.{letter}", tuple(Service), "dead.{service}.{letter}"),
    Route(
        episodes.GroupAdmitted,
        "sf.{run}.ev.group.{group}.admitted",
        (SCHEDULER,),
        "admitted.{group}",
        once="sf.{run}.ev.group.{group}.admitted",
    ),
    Route(
        episodes.EpisodeOpened,
        "sf.{run}.episode.{env}.{episode}",
        (SCHEDULER,),
        "opened.{episode}",
        once="sf.{run}.episode.{env}.{episode}",
    ),
    Route(
        episodes.EpisodeStarted,
        "sf.{run}.ev.episode.{episode}.started",
        (RUNNER,),
        "episode-started.{episode}.{runner}",
        once="sf.{run}.ev.episode.{episode}.started",
    ),
    Route(
        episodes.EpisodeEnded,
        "sf.{run}.call.{shard}.{episode}.ended",
        (RUNNER, SCHEDULER),
        "episode-ended.{episode}",
        once="sf.{run}.call.{shard}.{episode}.ended",
    ),
    Route(calls.CallRequested, "sf.{run}.call.{shard}.{episode}.{call}", (RUNNER,), "call.{episode}.{call}"),
    Route(
        calls.CallAnswered,
        "sf.{run}.ev.answer.{episode}.{call}",
        (MANAGER,),
        "answer.{episode}.{call}",
        once="sf.{run}.ev.answer.{episode}.{call}",
    ),
    Route(
        generations.GenerationRequested,
        "sf.{run}.gen.{tag}.{bucket}.{episode}.{generation}",
        (MANAGER,),
        "gen.{episode}.{generation}",
        once="sf.{run}.gen.*.*.{episode}.{generation}",
    ),
    Route(generations.GenerationClaimed, _SEGMENT, (WORKER,), "claim.{generation}.{nonce}"),
    Route(generations.SegmentSampled, _SEGMENT, (WORKER,), "segment.{generation}.{nonce}.{start}"),
    Route(generations.GenerationEnded, _SEGMENT, (WORKER,), "generation-ended.{generation}.{nonce}"),
    Route(
        samples.SamplesReady,
        "sf.{run}.sample.{origin.group}.{episode}",
        (MANAGER,),
        "samples.{episode}",
        once="sf.{run}.sample.{origin.group}.{episode}",
    ),
    Route(
        samples.EpisodeEvaluated,
        "sf.{run}.ev.evaluated.{episode}",
        (MANAGER,),
        "evaluated.{episode}",
        once="sf.{run}.ev.evaluated.{episode}",
    ),
    Route(training.BatchReady, "sf.{run}.ev.step.{step}.ready", (TRAINER,), "batch-ready.{step}.{line}"),
    Route(training.StepTaken, "sf.{run}.ev.step.{step}.taken", (TRAINER,), "step-taken.{step}.{line}"),
    Route(training.StepsCommitted, "sf.{run}.ev.step.{step}.committed", (TRAINER,), "committed.{step}.{line}"),
    Route(training.GroupTrained, _CLOSED, (TRAINER,), "closed.{group}", once=_CLOSED),
    Route(training.GroupDropped, _CLOSED, (TRAINER, SCHEDULER), "dropped.{group}", once=_CLOSED),
    Route(training.TrainerStarted, "sf.{run}.ev.training.started", (TRAINER,), "trainer-started.{line}"),
    Route(training.TrainingEndRequested, "sf.{run}.ev.finish.requested", (SCHEDULER,), "finish-requested"),
    Route(
        training.TrainingEnded, "sf.{run}.ev.training.ended", (TRAINER,), "training-ended", once="sf.{run}.ev.training.ended"
    ),
    Route(
        training.WeightsPublished,
        "sf.{run}.ev.weights.{weights_version}.published",
        (TRAINER,),
        "weights.{weights_version}",
        once="sf.{run}.ev.weights.{weights_version}.published",
    ),
    Route(
        training.WeightsLoaded,
        "sf.{run}.ev.weights.{weights_version}.loaded",
        (WORKER,),
        "loaded.{weights_version}.{worker}",
    ),
    Route(fleet.RoleAssigned, "sf.{run}.ev.role.{node}.assigned", (SCHEDULER,), "assigned.{node}.{epoch}"),
    Route(fleet.RoleReleased, "sf.{run}.ev.role.{node}.released", (WORKER, TRAINER), "released.{node}.{epoch}.{service}"),
    Route(fleet.RoleTaken, "sf.{run}.ev.role.{node}.taken", (WORKER, TRAINER), "taken.{node}.{epoch}.{service}"),
)

BY_EVENT: Mapping[type[Event], Route] = {route.event: route for route in ROUTES}
BY_NAME: Mapping[str, Route] = {route.event.__name__: route for route in ROUTES}


@dataclass(frozen=True, slots=True)
class Queue:
    """One service's work queue over a run's journal. Each consumer takes a part of it, told apart by ``{part}``."""

    service: Service
    role: str
    """Second half of the stream name ``Q<role>_<run>``."""
    filters: tuple[str, ...]
    """What the queue sources from the journal; ``{run}`` is filled."""
    consumer: str
    """Name template of its consumers."""
    consumer_filters: tuple[str, ...]
    prioritized: bool = False


QUEUES: tuple[Queue, ...] = (
    Queue(
        SCHEDULER,
        "SCHEDULER",
        (
            "sf.{run}.task.>",
            "sf.{run}.ev.tasks.ended",
            "sf.{run}.call.*.*.ended",
            "sf.{run}.ev.evaluated.*",
            "sf.{run}.ev.step.*.*",
            "sf.{run}.ev.group.*.closed",
            "sf.{run}.ev.training.*",
            "sf.{run}.ev.role.*.released",
            "sf.{run}.ev.role.*.taken",
        ),
        "scheduler",
        (">",),
    ),
    Queue(RUNNER, "RUNNER", ("sf.{run}.episode.>",), "env-{part}", ("sf.{run}.episode.{part}.*",)),
    Queue(
        MANAGER,
        "MANAGER",
        ("sf.{run}.call.>", "sf.{run}.ev.segment.>"),
        "shard-{part}",
        ("sf.{run}.call.{part}.>", "sf.{run}.ev.segment.{part}.>"),
    ),
    Queue(WORKER, "ROLLOUT", ("sf.{run}.gen.>",), "gen-{part}", ("sf.{run}.gen.{part_subject}.>",), prioritized=True),
    Queue(TRAINER, "TRAINER", ("sf.{run}.sample.>", "sf.{run}.ev.finish.requested"), "trainer", (">",)),
)
QUEUE_OF: Mapping[Service, Queue] = {queue.service: queue for queue in QUEUES}


def journal(run: str) -> str:
    """Name of a run's journal stream."""
    return f"J_{run}"


def stream_of(event: Event) -> str:
    """The stream an event is stored in."""
    return CONTROL_STREAM if BY_EVENT[type(event)].subject.startswith("sf.ctl.") else journal(event.run)


def queue_stream(service: Service, run: str) -> str:
    """Name of a service's work queue in a run."""
    return f"Q{QUEUE_OF[service].role}_{run}"


def consumer_name(service: Service, part: str = "") -> str:
    """Name of one consumer. ``part``: an environment tag, a shard, or ``<tag>.<bucket>``."""
    return QUEUE_OF[service].consumer.format(part=part.replace(".", "-").replace("+", "-"))


def subject_of(event: Event) -> str:
    """The subject an event is published on."""
    return _fill(BY_EVENT[type(event)].subject, event)


def message_id_of(event: Event) -> str:
    """The de-duplication id of an event: the same fact has the same id, whoever says it again."""
    return f"{event.run}.{_fill(BY_EVENT[type(event)].message_id, event)}"


def address(event: Event) -> Message:
    """A message without payload for an event: subject, id, and the fence of events that exist once."""
    once = BY_EVENT[type(event)].once
    return Message(
        subject=subject_of(event),
        payload=b"",
        message_id=message_id_of(event),
        expected_last_seq=None if once is None else 0,
        expected_subject=None if once is None else _fill(once, event),
    )


def subject_filter(event: type[Event], **known: object) -> str:
    """Subject of an event with ``*`` for every field that is not given, for reading it back."""
    by_name = {name: known.get(name.removeprefix("origin."), "*") for name in placeholders(BY_EVENT[event].subject)}
    return wildcards(BY_EVENT[event].subject, **by_name)


def placeholders(template: str) -> list[str]:
    """Names inside a template's braces, in order: ``origin.group`` for ``{origin.group}``."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def wildcards(template: str, **known: object) -> str:
    """A template as a subject filter: known names filled in, ``*`` for every other placeholder."""
    for name in placeholders(template):
        template = template.replace(f"{{{name}}}", str(known.get(name, "*")))
    return template


def _fill(template: str, event: Event) -> str:
    return template.format(**{name: getattr(event, name) for name in type(event).model_fields})


def control_streams() -> tuple[StreamSpec, StreamSpec]:
    """The permanent stream and the scheduler's queue over it."""
    return (
        StreamSpec(CONTROL_STREAM, subjects=("sf.ctl.>",)),
        StreamSpec(CONTROL_QUEUE, source=CONTROL_STREAM, source_filters=("sf.ctl.>",)),
    )


def run_streams(run: str, *, max_bytes: int = -1) -> list[StreamSpec]:
    """The journal and all work queues of a run."""
    queues = [
        StreamSpec(queue_stream(q.service, run), source=journal(run), source_filters=[f.format(run=run) for f in q.filters])
        for q in QUEUES
    ]
    return [StreamSpec(journal(run), subjects=(f"sf.{run}.>",), max_bytes=max_bytes), *queues]


def run_consumers(run: str, *, envs: Sequence[str], shards: int, tags: Sequence[str], buckets: int) -> list[ConsumerSpec]:
    """Every consumer of a run. Filters are never edited afterwards."""
    parts: Mapping[Service, Sequence[str]] = {
        SCHEDULER: ("",),
        RUNNER: tuple(envs),
        MANAGER: tuple(str(shard) for shard in range(shards)),
        WORKER: tuple(f"{tag}.{bucket}" for tag in tags for bucket in range(buckets)),
        TRAINER: ("",),
    }
    return [
        ConsumerSpec(
            stream=queue_stream(queue.service, run),
            name=consumer_name(queue.service, part),
            filters=[f.format(run=run, part=part, part_subject=part) for f in queue.consumer_filters],
            prioritized=queue.prioritized,
        )
        for queue in QUEUES
        for part in parts[queue.service]
    ]


def consumers_of(event: type[Event]) -> tuple[Service, ...]:
    """The services that have this event in a queue."""
    subject = BY_EVENT[event].subject
    if subject.startswith("sf.ctl."):
        return (SCHEDULER,)
    return tuple(queue.service for queue in QUEUES if any(overlaps(subject, pattern) for pattern in queue.filters))


def overlaps(template: str, pattern: str) -> bool:
    """Whether the subjects of a template go to a filter pattern (with * and >).

    A placeholder meets a literal only where both stand for the run: ids are never the literals of another subject.
    """
    ours, theirs = _tokens(template), pattern.split(".")
    for position, token in enumerate(theirs):
        if token == ">":
            return len(ours) > position
        if position >= len(ours) or not (token == "*" or token.startswith("{") or token == ours[position]):
            return False
    return len(ours) == len(theirs)


def events_on(subject: str) -> tuple[type[Event], ...]:
    """Events whose template gives this very subject; the most literal template wins."""
    tokens = subject.split(".")
    fitting = [
        route
        for route in ROUTES
        if len(parts := _tokens(route.subject)) == len(tokens)
        and all(part.startswith("{") or part == token for part, token in zip(parts, tokens, strict=True))
    ]
    most = max((_literals(route.subject) for route in fitting), default=0)
    return tuple(route.event for route in fitting if _literals(route.subject) == most)


def _literals(template: str) -> int:
    return sum(not token.startswith("{") for token in _tokens(template))


def _tokens(template: str) -> list[str]:
    """The dot inside ``{origin.group}`` parts no tokens."""
    return template.replace("{origin.", "{").split(".")
