"""The busy time of each worker, and generations waiting and in flight: a fold of the events of generations. Pure.

A worker's time counts only from one of its own signs to the next (claim, segment, end, weights loaded), so that one that
died is not taken for busy. What it claimed stays its own until another worker claims it, its node hands it back, or its
episode ends. Memory: what is open now, and a fixed number of bins for each worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from .binning import Level, Sums
from .device_holders import WORKER, RoleSpan
from .spans import Series, SpanKind

Key = tuple[str, str]
"""Episode, generation."""

MAX_ENDED_EPISODES = 20_000
"""Of which a late claim is still told apart."""


@dataclass(slots=True)
class Worker:
    """One process with an engine."""

    first: float
    """Its first sign."""
    last: float
    node: str = ""
    """Empty: unknown."""
    lost: bool = False
    """Others claimed what it held, nothing was handed back, and it has given no sign since: presumed dead."""
    held: set[Key] = field(default_factory=set)
    sampling: Sums = field(default_factory=Sums)
    """Seconds with a generation in the engine."""
    in_flight: Sums = field(default_factory=Sums)
    """Seconds of all its generations together."""

    def sign(self, time: float, *, paused: float = 0.0) -> None:
        """It lives. ``paused``: seconds before ``time`` in which its engine stood still."""
        until = max(self.last, time - paused)
        if self.held:
            self.sampling.add(self.last, until)
            self.in_flight.add(self.last, until, float(len(self.held)))
        self.last, self.lost = max(self.last, time), False


class GenerationsFold:
    """Fed with events of generations in the order of the journal."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.queued, self.in_flight = Level(), Level()
        self.saw_requests = False
        self._waiting: dict[Key, None] = {}
        self._holder: dict[Key, Worker] = {}
        self._open: dict[str, set[Key]] = {}
        self._ended: dict[str, None] = {}

    def requested(self, key: Key, time: float) -> None:
        """A generation waits for a worker."""
        self.saw_requests = True
        if key[0] not in self._ended:
            self._wait(key, time)

    def claimed(self, key: Key, name: str, time: float) -> None:
        """By the worker of this name; an earlier holder is fenced off."""
        worker = self._worker(name, time)
        worker.sign(time)
        if key[0] in self._ended:
            return
        if (former := self._holder.get(key)) is not None and former is not worker:
            former.lost = True
        self._close(key, time)
        self._open.setdefault(key[0], set()).add(key)
        self._holder[key] = worker
        worker.held.add(key)
        self.in_flight.change(time, 1)

    def reported(self, key: Key, time: float, *, is_end: bool) -> None:
        """A segment or an end, by whoever holds it."""
        if (worker := self._holder.get(key)) is not None:
            worker.sign(time)
        if is_end:
            self._close(key, time)

    def loaded(self, name: str, node: str, time: float, pause_seconds: float) -> None:
        """A worker loaded weights. ``node``: where it is; empty: unknown."""
        worker = self._worker(name, time)
        worker.node = node or worker.node
        worker.sign(time, paused=pause_seconds)

    def handed_back(self, node: str, time: float) -> None:
        """What the node's workers held waits again."""
        for worker in self.workers.values():
            if worker.node == node and worker.held:
                worker.sign(time)
                for key in sorted(worker.held):
                    self._close(key, time)
                    self._wait(key, time)

    def episode_ended(self, episode: str, time: float) -> None:
        """No worker samples for it any more."""
        for key in sorted(self._open.get(episode, ())):
            self._close(key, time)
        self._ended[episode] = None
        if len(self._ended) > MAX_ENDED_EPISODES:
            del self._ended[next(iter(self._ended))]

    def _wait(self, key: Key, time: float) -> None:
        if key not in self._waiting and key not in self._holder:
            self._waiting[key] = None
            self._open.setdefault(key[0], set()).add(key)
            self.queued.change(time, 1)

    def _close(self, key: Key, time: float) -> None:
        """It neither waits nor is it held."""
        if key in self._waiting:
            del self._waiting[key]
            self.queued.change(time, -1)
        if (worker := self._holder.pop(key, None)) is not None:
            worker.held.discard(key)
            self.in_flight.change(time, -1)
        of_episode = self._open.get(key[0])
        if of_episode is not None:
            of_episode.discard(key)
            if not of_episode:
                del self._open[key[0]]

    def _worker(self, name: str, time: float) -> Worker:
        if name not in self.workers:
            self.workers[name] = Worker(time, time)
        return self.workers[name]


# What the worker processes of a node come to together: when none of them was alive, and how much they had in flight. Pure.


SILENT_SECONDS = 10.0
"""A sampling worker reports once a second; one that holds generations and is silent for so long may be dead."""


def deaths(workers: list[Worker], stretches: list[RoleSpan], end: float) -> Iterator[RoleSpan]:
    """From a worker's last sign: to the first one of the process in its place, to the lease that gave it up, or to the end.

    What comes first counts where they overlap.
    """
    for former, later in pairwise(workers):
        if later.first > former.last:
            why = "its rollout-worker died, and another took its place"
            yield RoleSpan(former.last, later.first, WORKER, SpanKind.AWAY, why)
    for role_span in stretches:
        if role_span.is_silent and (signs := [worker.last for worker in workers if worker.last <= role_span.start]):
            yield RoleSpan(max(signs), role_span.start, WORKER, SpanKind.AWAY, "no sign of its rollout-worker any more")
    if workers and workers[-1].lost:
        why = "no sign of its rollout-worker any more: others went on with its generations"
        yield RoleSpan(workers[-1].last, end, WORKER, SpanKind.AWAY, why)
    elif workers and workers[-1].held and end - workers[-1].last > SILENT_SECONDS:
        yield RoleSpan(workers[-1].last, end, WORKER, SpanKind.HELD, "its rollout-worker has generations and says nothing")


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
