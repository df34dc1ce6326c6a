"""A journal, event by event, into what every node did. Pure; see the package for the picture as a whole."""

from __future__ import annotations

from ..commit_history import CommitHistory
from ..contracts import (
    BatchReady,
    EpisodeEnded,
    Event,
    GenerationClaimed,
    GenerationEnded,
    GenerationRequested,
    GroupDropped,
    GroupTrained,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    RunEnded,
    RunStarted,
    SamplesReady,
    SegmentSampled,
    StepsCommitted,
    StepTaken,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
    WeightsLoaded,
    WeightsPublished,
    claim_of,
)
from ..suspensions import Lives
from .cutting import covered, cut
from .presence import deaths, in_flight
from .roles import TRAINER, WORKER, NodeRoles, Stretch
from .sampling import Sampling, Worker
from .span import Kind, Lanes, Span
from .steps import Interval, Steps

READS: tuple[type[Event], ...] = (
    BatchReady, EpisodeEnded, GenerationClaimed, GenerationEnded, GenerationRequested, GroupDropped, GroupTrained, RoleAssigned,
    RoleReleased, RoleTaken, RunEnded, RunStarted, SamplesReady, SegmentSampled, StepTaken, StepsCommitted,
    TrainerClaimed, TrainerStarted, TrainingEnded, WeightsLoaded, WeightsPublished,
)  # fmt: skip
"""What the fold has a use for; the other half of a journal need not be decoded."""


class LanesFold:
    """Fed with a journal from its beginning. Several hundred bytes for each lease, some ten kilobytes for each worker."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._last: float = 0.0
        self._ended: float | None = None
        self._nodes: dict[str, NodeRoles] = {}
        self._sampling, self._steps, self._lives = Sampling(), Steps(), Lives()
        self._history = CommitHistory()

    def apply(self, event: Event, time: float) -> None:
        """Take one event in. What is said after the run's end is no part of it, nor what a late trainer publishes."""
        if self._ended is not None or not self._history.accepts(event):
            return
        self._start = time if self._start is None else min(self._start, time)
        self._last = max(self._last, time)
        self._lives.add(event, time)
        match event:
            case RunEnded():
                self._ended = time
                self._steps.over()
            case RoleAssigned() | RoleTaken():
                self._nodes.setdefault(event.node, NodeRoles()).apply(event, time)
            case RoleReleased():
                self._nodes.setdefault(event.node, NodeRoles()).apply(event, time)
                if event.num_handed_back and event.service == WORKER:
                    self._sampling.handed_back(event.node, time)
            case GenerationRequested():
                self._sampling.requested((event.episode, event.generation), time)
            case GenerationClaimed():
                self._sampling.claimed((event.episode, event.generation), event.worker, time)
            case SegmentSampled():
                if (claim := claim_of(event)) is not None:
                    self._sampling.claimed((event.episode, event.generation), claim.worker, time)
                self._sampling.said((event.episode, event.generation), time, is_end=event.finish is not None)
            case GenerationEnded():
                self._sampling.said((event.episode, event.generation), time, is_end=True)
            case EpisodeEnded():
                self._sampling.episode_ended(event.episode, time)
            case WeightsLoaded():
                self._sampling.loaded(event.worker, event.node, time, event.pause_seconds)
            case WeightsPublished():
                self._steps.published(event.weights_version, event.step, time)
            case SamplesReady():
                self._steps.sampled(event)
            case GroupTrained() if self._history.claims:
                pass  # an account closed it before, or a late writer of an earlier release publishes it
            case GroupTrained() | GroupDropped():
                self._steps.closed(event.group)
            case StepsCommitted():
                for group in event.account:
                    self._steps.closed(group.group)
            case TrainerClaimed():
                self._history.apply(event)
                self._steps.began_line(event.line)
            case TrainerStarted():
                self._steps.began_line(event.line)
            case BatchReady():
                self._steps.ready(event, time)
            case StepTaken():
                self._steps.took(event, time)
            case TrainingEnded():
                self._steps.over()

    def lanes(self, title: str) -> Lanes:
        """What is known so far; may be asked again and again. Of a run that goes on, up to its newest event."""
        start, end = self._start or 0.0, self._last
        devices = {name: roles for name, roles in sorted(self._nodes.items()) if roles.is_device}
        held = {name: roles.stretches(start, end) for name, roles in devices.items()}
        stepping = self._stepping(held, end)
        workers = self._workers(held)
        suspended = [Stretch(*gap, kind=Kind.AWAY, reason="the run was suspended") for gap in self._lives.suspensions()]
        spans: list[Span] = []
        for name, stretches in held.items():
            whole = covered(stretches, [*suspended, *deaths(workers.get(name, []), stretches, end)])
            spans += cut(name, whole, stepping[name], workers.get(name))
        flights = {name: series for name in held if (series := in_flight(workers.get(name, []))) is not None}
        return Lanes(
            title=title,
            start=start,
            end=end,
            spans=spans,
            steps=tuple(self._steps.taken),
            queued=self._sampling.queued.series(end) if self._sampling.saw_requests else None,
            in_flight=self._sampling.in_flight.series(end) if self._sampling.workers else None,
            node_in_flight=flights,
            versions=tuple(self._steps.versions),
            notes=self._notes([name for name in held if name not in workers and any(s.holder == WORKER for s in held[name])]),
        )

    def _stepping(self, held: dict[str, list[Stretch]], end: float) -> dict[str, list[Interval]]:
        """Of each node, when a step was in progress that it took part in: its own, or one of the gang that it is of."""
        steps = self._steps.in_progress(end)
        found: dict[str, list[Interval]] = {name: [] for name in held}
        for lead, stretches in held.items():
            for stretch in stretches:
                if stretch.holder == TRAINER and stretch.gang[:1] in ((), (lead,)):
                    inside = [(max(a, stretch.start), min(b, stretch.end)) for a, b in steps]
                    for name in stretch.gang or (lead,):
                        found.setdefault(name, []).extend((a, b) for a, b in inside if b > a)
        return found

    def _workers(self, held: dict[str, list[Stretch]]) -> dict[str, list[Worker]]:
        """The workers of each node, oldest first. Where only one node ever rolled out, all are its own."""
        rolled_out = [name for name, stretches in held.items() if any(s.holder == WORKER for s in stretches)]
        alone = rolled_out[0] if len(rolled_out) == 1 else ""
        found: dict[str, list[Worker]] = {}
        for worker in sorted(self._sampling.workers.values(), key=lambda worker: worker.first):
            found.setdefault(worker.node or alone, []).append(worker)
        return found

    def _notes(self, unknown: list[str]) -> list[str]:
        notes = [] if self._ended is not None else ["the run has not ended: this is what is known up to its newest event"]
        if unknown:
            notes.append(
                f"which process samples on {', '.join(unknown[:3])}{' …' if unknown[3:] else ''} is not said in this journal"
            )
        if self._sampling.workers and not self._sampling.saw_requests:
            notes.append("requests of generations were not read: how many waited is not known")
        return notes
