"""The wiring table: the subject, publishers and handlers of each event. The only place with subjects.

``ROUTES`` has a row for each event, ``QUEUES`` one for each service that acts on events. Everything else is derived:
subjects and ids (``addresses``), streams and consumers (``streams``), and by the exports schemas, permissions and
docs/events.md, where both tables are joined. Templates are filled with the event's fields (``{origin.group}`` reaches
into a nested record).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import calls, episodes, fleet, generations, runs, samples, training
from .base import Event, Service

RUNNER, WORKER, MANAGER = Service.AGENT_RUNNER, Service.ROLLOUT_WORKER, Service.TRAJECTORY_MANAGER
SCHEDULER, TRAINER, USER = Service.SCHEDULER, Service.TRAINER, Service.USER

CONTROL_STREAM, CONTROL_SUBJECTS = "CTL", "sf.ctl.>"
CONTROL_QUEUE = "QCTL"
CONTROL_CONSUMER = "scheduler"
JOURNAL, JOURNAL_SUBJECTS = "J_{run}", "sf.{run}.>"
NODES_BUCKET, LEASES_BUCKET, WEIGHTS_BUCKET, RUNS_BUCKET, ORDERS_BUCKET = "NODES", "LEASES", "WEIGHTS", "RUNS", "ORDERS"
READERS_BUCKET = "READERS"
BUCKETS = (NODES_BUCKET, LEASES_BUCKET, WEIGHTS_BUCKET, RUNS_BUCKET, ORDERS_BUCKET, READERS_BUCKET)

HINT_POKE = "sfhint.poke.{node}"
"""Core NATS, may be lost: re-read your lease now."""
HINT_WEIGHTS = "sfhint.weights.{run}"
"""Core NATS, may be lost: re-read the weights' head now."""


@dataclass(frozen=True, slots=True)
class Route:
    """One event's wiring."""

    event: type[Event]
    subject: str
    published_by: tuple[Service, ...]
    message_id: str
    """Template of the de-duplication id; together with the run it names one fact."""
    once: str | None = None
    """Subject template over which it may exist only once (appended with expected sequence 0). None: not limited."""
    claimed: str | None = None
    """Subject template of the claims of which the publisher's must be the newest (appended with the sequence of its claim as
    the last one there). None: no claim is needed."""
    formerly: str | None = None
    """Subject template on which earlier releases published it; it is read there, too. None: on the same."""

    @property
    def stream(self) -> str:
        """Name of the stream that stores it; ``{run}`` stands for the run."""
        return CONTROL_STREAM if self.subject.startswith(CONTROL_SUBJECTS.removesuffix(">")) else JOURNAL


def _once(event: type[Event], subject: str, published_by: tuple[Service, ...], message_id: str, *, over: str = "") -> Route:
    """A row for what may exist only once: over its own subject, or over a wider one."""
    return Route(event, subject, published_by, message_id, once=over or subject)


_SEGMENT = "sf.{run}.ev.segment.{shard}.{episode}.{generation}"
_CLOSED = "sf.{run}.ev.group.{group}.closed"
_COMMITS = "sf.{run}.ev.training.commits"
"""Claims, commits and rollbacks of a run, in the one order that counts. Their ids end in line and nonce of the claim, so that
whose an event is can be told without its payload, which may rest in the store."""


def _under_claim(
    event: type[Event], subject: str, published_by: tuple[Service, ...], message_id: str, *, formerly: str | None = None
) -> Route:
    """A row for what only the newest claim may publish."""
    return Route(event, subject, published_by, message_id, claimed=_COMMITS, formerly=formerly)


ROUTES: tuple[Route, ...] = (
    # event, subject, published by, message id
    _once(runs.RunRequested, "sf.ctl.run.{run}.requested", (USER,), "requested"),
    Route(runs.RunStopRequested, "sf.ctl.run.{run}.stop", (USER, TRAINER, WORKER, MANAGER), "stop"),
    _once(runs.RunStarted, "sf.{run}.ev.run.started", (SCHEDULER,), "started"),
    _under_claim(runs.RunEnded, "sf.{run}.ev.run.ended", (SCHEDULER,), "ended.{nonce}"),
    _under_claim(runs.RunHeld, "sf.{run}.ev.training.held", (TRAINER,), "held.{nonce}"),
    Route(runs.ResumeRequested, "sf.{run}.ev.training.resume", (USER,), "resume.{request}"),
    Route(runs.TaskSubmitted, "sf.{run}.task.{env}.{task}", (USER, RUNNER), "task.{task}"),
    Route(runs.TasksEnded, "sf.{run}.ev.tasks.ended", (USER,), "tasks-ended"),
    _once(runs.EvaluationEnded, "sf.{run}.ev.evaluation.{round}.ended", (SCHEDULER,), "evaluation.{round}"),
    Route(runs.DeadLetter, "sf.{run}.dead.{service}.{letter}", tuple(Service), "dead.{service}.{letter}"),
    _once(episodes.GroupAdmitted, "sf.{run}.ev.group.{group}.admitted", (SCHEDULER,), "admitted.{group}"),
    _once(episodes.EpisodeOpened, "sf.{run}.episode.{env}.{episode}", (SCHEDULER,), "opened.{episode}"),
    _once(episodes.EpisodeStarted, "sf.{run}.ev.episode.{episode}.started", (RUNNER,), "episode-started.{episode}.{runner}"),
    _once(episodes.EpisodeEnded, "sf.{run}.call.{shard}.{episode}.ended", (RUNNER, SCHEDULER), "episode-ended.{episode}"),
    Route(calls.CallRequested, "sf.{run}.call.{shard}.{episode}.{call}", (RUNNER,), "call.{episode}.{call}"),
    _once(calls.CallAbandoned, "sf.{run}.ev.abandoned.{episode}.{call}", (RUNNER,), "abandoned.{episode}.{call}"),
    _once(calls.CallAnswered, "sf.{run}.ev.answer.{episode}.{call}", (MANAGER,), "answer.{episode}.{call}"),
    _once(
        generations.GenerationRequested,
        "sf.{run}.gen.{tag}.{bucket}.{episode}.{generation}",
        (MANAGER,),
        "gen.{episode}.{generation}",
        over="sf.{run}.gen.*.*.{episode}.{generation}",
    ),
    Route(generations.GenerationClaimed, _SEGMENT, (WORKER,), "claim.{generation}.{nonce}"),
    Route(generations.SegmentSampled, _SEGMENT, (WORKER,), "segment.{generation}.{nonce}.{start}"),
    Route(generations.GenerationEnded, _SEGMENT, (WORKER,), "generation-ended.{generation}.{nonce}"),
    _once(samples.SamplesReady, "sf.{run}.sample.{origin.group}.{episode}", (MANAGER,), "samples.{episode}"),
    _once(samples.EpisodeEvaluated, "sf.{run}.ev.evaluated.{episode}", (MANAGER,), "evaluated.{episode}"),
    Route(training.BatchReady, "sf.{run}.ev.step.{step}.ready", (TRAINER,), "batch-ready.{step}.{line}"),
    Route(training.StepTaken, "sf.{run}.ev.step.{step}.taken", (TRAINER,), "step-taken.{step}.{line}"),
    _under_claim(training.TrainerClaimed, _COMMITS, (TRAINER, SCHEDULER), "trainer-claimed.{line}.{nonce}"),
    _under_claim(
        training.StepsCommitted,
        _COMMITS,
        (TRAINER,),
        "committed.{step}.{line}.{nonce}",
        formerly="sf.{run}.ev.step.{step}.committed",
    ),
    _under_claim(training.RolledBack, _COMMITS, (TRAINER,), "rolled-back.{request}.{line}.{nonce}"),
    _once(training.GroupTrained, _CLOSED, (TRAINER, SCHEDULER), "closed.{group}"),
    _under_claim(training.GroupDropped, _CLOSED, (TRAINER, SCHEDULER), "dropped.{group}.{nonce}"),
    _under_claim(training.TrainerStarted, "sf.{run}.ev.training.started", (TRAINER,), "trainer-started.{line}.{nonce}"),
    Route(training.TrainingEndRequested, "sf.{run}.ev.finish.requested", (SCHEDULER,), "finish-requested"),
    _under_claim(training.TrainingEnded, "sf.{run}.ev.training.ended", (TRAINER,), "training-ended.{nonce}"),
    _under_claim(
        training.WeightsPublished, "sf.{run}.ev.weights.{weights_version}.published", (TRAINER,), "weights.{weights_version}"
    ),
    Route(
        training.WeightsLoaded, "sf.{run}.ev.weights.{weights_version}.loaded", (WORKER,), "loaded.{weights_version}.{worker}"
    ),
    Route(fleet.RoleAssigned, "sf.{run}.ev.role.{node}.assigned", (SCHEDULER,), "assigned.{node}.{epoch}"),
    Route(fleet.RoleReleased, "sf.{run}.ev.role.{node}.released", (WORKER, TRAINER), "released.{node}.{epoch}.{service}"),
    Route(fleet.RoleTaken, "sf.{run}.ev.role.{node}.taken", (WORKER, TRAINER), "taken.{node}.{epoch}.{service}"),
)

HINTS: tuple[type[Event], ...] = (calls.AnswerDelta,)
"""Events that are never stored: they go to one waiter's inbox, over core NATS, and may be lost."""

BY_EVENT: Mapping[type[Event], Route] = {route.event: route for route in ROUTES}
BY_NAME: Mapping[str, type[Event]] = {event.__name__: event for event in (*BY_EVENT, *HINTS)}


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
            "sf.{run}.ev.role.*.*",
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
