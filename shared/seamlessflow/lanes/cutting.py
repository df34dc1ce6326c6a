"""From who held a device to what it did: stretches cut by steps in progress, by sampling, and by what is covered. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .roles import TRAINER, WORKER, Stretch
from .sampling import Worker
from .span import Kind, Span
from .steps import Interval

LEAST_SECONDS = 1e-9
"""Shorter is rounding."""


def covered(stretches: Sequence[Stretch], covers: Iterable[Stretch]) -> list[Stretch]:
    """The stretches, with what the covers say in the place of what they lie over.

    A cover with a holder lies only over stretches of that holder, and takes the device from it.
    """
    found = list(stretches)
    for cover in covers:
        under, found = found, []
        for stretch in under:
            start, end = max(stretch.start, cover.start), min(stretch.end, cover.end)
            if end - start < LEAST_SECONDS or cover.holder not in ("", stretch.holder):
                found.append(stretch)
                continue
            parts = (
                replace(stretch, end=start),
                replace(cover, start=start, end=end, holder="", epoch=stretch.epoch),
                replace(stretch, start=end),
            )
            found += [part for part in parts if part.end > part.start]
    return found


def cut(node: str, stretches: Sequence[Stretch], steps: Sequence[Interval], workers: Sequence[Worker] | None) -> list[Span]:
    """The node's spans, in order, without gaps. ``workers`` None: which processes sample on it is not known."""
    holds = [(stretch.start, stretch.end) for stretch in stretches if stretch.holder == WORKER]
    steps, spans = _merged(steps), list[Span]()
    for stretch in stretches:
        for span in _pieces(node, stretch, steps, workers, holds):
            last = spans[-1] if spans else None
            if last is not None and (last.kind, last.reason, last.busy) == (span.kind, span.reason, span.busy):
                spans[-1] = replace(last, end=span.end)
            else:
                spans.append(span)
    return spans


def _pieces(
    node: str, stretch: Stretch, steps: Sequence[Interval], workers: Sequence[Worker] | None, holds: Sequence[Interval]
) -> Iterator[Span]:
    whole = Span(node, stretch.kind, stretch.start, stretch.end, stretch.reason, stretch.epoch)
    if stretch.holder == TRAINER:
        yield from _train(whole, steps)
    elif stretch.holder == WORKER and workers is None:
        yield replace(whole, kind=Kind.HELD)
    elif stretch.holder == WORKER and workers is not None:
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
            yield replace(whole, kind=Kind.TRAIN_WAITING, start=at, end=since)
        yield replace(whole, kind=Kind.TRAIN, start=since, end=until)
        at = until
    if whole.end > at:
        yield replace(whole, kind=Kind.TRAIN_WAITING, start=at)


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
        return replace(whole, kind=Kind.WAITING, start=start, end=end)
    return replace(whole, kind=Kind.ROLLOUT, start=start, end=end, busy=min(1.0, busy_seconds / (end - start)))


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
