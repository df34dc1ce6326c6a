"""What the worker processes of a node come to together: when none of them was alive, and how much they had in flight. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .roles import WORKER, Stretch
from .sampling import Worker
from .span import Kind, Series

SILENT_SECONDS = 10.0
"""A worker says what it samples once a second; with generations and without a word for so long, it may be dead."""


def deaths(workers: list[Worker], stretches: list[Stretch], end: float) -> Iterator[Stretch]:
    """From a worker's last sign: to the first one of the process in its place, to the lease that gave it up, or to the end.

    What comes first counts where they overlap.
    """
    for former, later in pairwise(workers):
        if later.first > former.last:
            why = "its rollout-worker died, and another took its place"
            yield Stretch(former.last, later.first, WORKER, Kind.AWAY, why)
    for stretch in stretches:
        if stretch.is_silent and (signs := [worker.last for worker in workers if worker.last <= stretch.start]):
            yield Stretch(max(signs), stretch.start, WORKER, Kind.AWAY, "no sign of its rollout-worker any more")
    if workers and workers[-1].lost:
        why = "no sign of its rollout-worker any more: others went on with its generations"
        yield Stretch(workers[-1].last, end, WORKER, Kind.AWAY, why)
    elif workers and workers[-1].held and end - workers[-1].last > SILENT_SECONDS:
        yield Stretch(workers[-1].last, end, WORKER, Kind.HELD, "its rollout-worker has generations and says nothing")


def in_flight(workers: list[Worker]) -> Series | None:
    """Of a node, its workers together; they follow one another. None: no worker of it is known."""
    series = [worker.in_flight.series() for worker in workers]
    series = [each for each in series if each.values]
    if len(series) < 2:
        return series[0] if series else None
    width = max(each.width for each in series)
    sums: dict[int, float] = {}
    for each in series:
        for place, value in enumerate(each.values):
            index = int((each.start + place * each.width) // width)
            sums[index] = sums.get(index, 0.0) + value * each.width / width
    first, last = min(sums), max(sums)
    return Series(first * width, width, [sums.get(index, 0.0) for index in range(first, last + 1)])
