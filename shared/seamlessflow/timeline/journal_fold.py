"""A journal, event by event, into what every node did. Pure; see the package for the picture as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import (
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
from seamlessflow.reports.downtime import Lives

from .device_holders import TRAINER, WORKER, NodeRoles, RoleSpan
from .generation_spans import GenerationsFold, Worker, deaths, in_flight
from .spans import Span, SpanKind, Timeline
from .train_steps import Interval, TrainStepsFold

# From who held a device to what it did: stretches cut by steps in progress, by sampling, and by what is covered. Pure.


LEAST_SECONDS = 1e-9
"""Shorter is rounding."""


def covered(stretches: Sequence[RoleSpan], covers: Iterable[RoleSpan]) -> list[RoleSpan]:
    """The spans, with the covers in the place of what they lie over.

    A cover with a holder lies only over stretches of that holder, and takes the device from it.
    """
    found = list(stretches)
    for cover in covers:
        under, found = found, []
        for role_span in under:
            start, end = max(role_span.start, cover.start), min(role_span.end, cover.end)
            if end - start < LEAST_SECONDS or cover.holder not in ("", role_span.holder):
                found.append(role_span)
                continue
            parts = (
                replace(role_span, end=start),
                replace(cover, start=start, end=end, holder="", epoch=role_span.epoch),
                replace(role_span, start=end),
            )
            found += [part for part in parts if part.end > part.start]
    return found


def cut(node: str, stretches: Sequence[RoleSpan], steps: Sequence[Interval], workers: Sequence[Worker] | None) -> list[Span]:
    """The node's spans, in order, without gaps. ``workers`` None: which processes sample on it is not known."""
    holds = [(role_span.start, role_span.end) for role_span in stretches if role_span.holder == WORKER]
    steps, spans = _merged(steps), list[Span]()
    for role_span in stretches:
        for span in _pieces(node, role_span, steps, workers, holds):
            last = spans[-1] if spans else None
            if last is not None and (last.kind, last.reason, last.busy) == (span.kind, span.reason, span.busy):
                spans[-1] = replace(last, end=span.end)
            else:
                spans.append(span)
    return spans


def _pieces(
    node: str, role_span: RoleSpan, steps: Sequence[Interval], workers: Sequence[Worker] | None, holds: Sequence[Interval]
) -> Iterator[Span]:
    whole = Span(node, role_span.kind, role_span.start, role_span.end, role_span.reason, role_span.epoch)
    if role_span.holder == TRAINER:
        yield from _train(whole, steps)
    elif role_span.holder == WORKER and workers is None:
        yield replace(whole, kind=SpanKind.HELD)
    elif role_span.holder == WORKER and workers is not None:
        yield from _rollout(whole, workers, holds)
    else:
        yield whole


def _train(whole: Span, steps: Sequence[Interval]) -> Iterator[Span]:
    at = whole.start
    for began, taken in _among(steps, whole.start, whole.end):
        since, until = max(began, at), min(taken, whole.end)
        if until - since < LEAST_SECONDS:
            continue
        if since > at:
            yield replace(whole, kind=SpanKind.TRAIN_WAITING, start=at, end=since)
        yield replace(whole, kind=SpanKind.TRAIN, start=since, end=until)
        at = until
    if whole.end > at:
        yield replace(whole, kind=SpanKind.TRAIN_WAITING, start=at)


def _rollout(whole: Span, workers: Sequence[Worker], holds: Sequence[Interval]) -> Iterator[Span]:
    """Cut where nothing was sampled for a bin or longer; shorter pauses are in ``busy``."""
    at, busy_seconds, began = whole.start, 0.0, whole.start
    was_busy: bool | None = None
    for since, until, density in _densities(whole, workers, holds):
        is_busy = density > 0
        if was_busy is not None and is_busy is not was_busy:
            yield _rolled(whole, began, at, busy_seconds)
            began, busy_seconds = since, 0.0
        busy_seconds += density * (until - since)
        at, was_busy = until, is_busy
    yield _rolled(whole, began, whole.end, busy_seconds)


def _rolled(whole: Span, start: float, end: float, busy_seconds: float) -> Span:
    if busy_seconds <= 0:
        return replace(whole, kind=SpanKind.WAITING, start=start, end=end)
    return replace(whole, kind=SpanKind.ROLLOUT, start=start, end=end, busy=min(1.0, busy_seconds / (end - start)))


def _densities(whole: Span, workers: Sequence[Worker], holds: Sequence[Interval]) -> Iterator[tuple[float, float, float]]:
    """(from, to, share of it that was sampled) over the whole, in order, without gaps.

    A bin over the end of a hold has its seconds shared out among the holds in it.
    """
    sampled: dict[tuple[float, float], float] = {}
    width = max((worker.sampling.width for worker in workers), default=whole.seconds)
    for worker in workers:
        if worker.last > whole.start and worker.first < whole.end:
            for low, high, seconds in worker.sampling.within(whole.start, whole.end):
                index = low // width * width if high - low < width else low
                bin_ = (index, index + width)
                sampled[bin_] = sampled.get(bin_, 0.0) + seconds
    at = whole.start
    for low, high in sorted(sampled):
        since, until = max(low, whole.start), min(high, whole.end)
        if until <= since:
            continue
        if since > at:
            yield at, since, 0.0
        held = until - since if whole.start <= low and high <= whole.end else _overlap(holds, low, high)
        yield since, until, min(1.0, sampled[low, high] / held)
        at = until
    if whole.end > at:
        yield at, whole.end, 0.0


def _overlap(holds: Sequence[Interval], low: float, high: float) -> float:
    return sum(max(0.0, min(high, end) - max(low, start)) for start, end in _among(holds, low, high))


def _among(intervals: Sequence[Interval], low: float, high: float) -> Iterator[Interval]:
    """Those that touch the time between; they are in order and do not overlap."""
    for place in range(bisect_right(intervals, low, key=lambda interval: interval[1]), len(intervals)):
        if intervals[place][0] >= high:
            return
        yield intervals[place]


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """In order, and without overlaps."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


READS: tuple[type[Event], ...] = (
    BatchReady, EpisodeEnded, GenerationClaimed, GenerationEnded, GenerationRequested, GroupDropped, GroupTrained, RoleAssigned,
    RoleReleased, RoleTaken, RunEnded, RunStarted, SamplesReady, SegmentSampled, StepTaken, StepsCommitted,
    TrainerClaimed, TrainerStarted, TrainingEnded, WeightsLoaded, WeightsPublished,
)  # fmt: skip
"""What the fold has a use for; the other half of a journal need not be decoded."""


class TimelineFold:
    """Fed with a journal from its beginning. Several hundred bytes for each lease, some ten kilobytes for each worker."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._last: float = 0.0
        self._ended: float | None = None
        self._nodes: dict[str, NodeRoles] = {}
        self._sampling, self._steps, self._lives = GenerationsFold(), TrainStepsFold(), Lives()
        self._history = CommitHistory()

    def apply(self, event: Event, time: float) -> None:
        """Take one event in. Events after the run's end are ignored, and so are those of a late trainer."""
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
                self._sampling.reported((event.episode, event.generation), time, is_end=event.finish is not None)
            case GenerationEnded():
                self._sampling.reported((event.episode, event.generation), time, is_end=True)
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

    def lanes(self, title: str) -> Timeline:
        """What is known so far; may be asked again and again. Of a run that goes on, up to its newest event."""
        start, end = self._start or 0.0, self._last
        devices = {name: roles for name, roles in sorted(self._nodes.items()) if roles.is_device}
        held = {name: roles.stretches(start, end) for name, roles in devices.items()}
        stepping = self._stepping(held, end)
        workers = self._workers(held)
        suspended = [RoleSpan(*gap, kind=SpanKind.AWAY, reason="the run was suspended") for gap in self._lives.suspensions()]
        spans: list[Span] = []
        for name, stretches in held.items():
            whole = covered(stretches, [*suspended, *deaths(workers.get(name, []), stretches, end)])
            spans += cut(name, whole, stepping[name], workers.get(name))
        flights = {name: series for name in held if (series := in_flight(workers.get(name, []))) is not None}
        return Timeline(
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

    def _stepping(self, held: dict[str, list[RoleSpan]], end: float) -> dict[str, list[Interval]]:
        """Of each node, when a step was in progress that it took part in: its own, or one of the gang that it is of."""
        steps = self._steps.in_progress(end)
        found: dict[str, list[Interval]] = {name: [] for name in held}
        for lead, stretches in held.items():
            for role_span in stretches:
                if role_span.holder == TRAINER and role_span.gang[:1] in ((), (lead,)):
                    inside = [(max(a, role_span.start), min(b, role_span.end)) for a, b in steps]
                    for name in role_span.gang or (lead,):
                        found.setdefault(name, []).extend((a, b) for a, b in inside if b > a)
        return found

    def _workers(self, held: dict[str, list[RoleSpan]]) -> dict[str, list[Worker]]:
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
