"""The queue of generations: owners of affinity buckets first, then whoever has a free slot. Pure.

As consumers with the ``prioritized`` group policy do: a generation goes to the owner of its bucket when that has credit, else
to another with credit; what finds none waits, oldest first, and a handed-back one is the oldest of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Protocol

from .simulator_episodes import Episode


class Worker(Protocol):
    """A node that pulls."""

    name: str

    @property
    def credit(self) -> int: ...

    def take(self, episode: Episode) -> None: ...


class Queue:
    """``bind`` and ``unbind`` say who pulls; ``look`` lets a worker fill its free slots."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._buckets: dict[str, tuple[int, ...]] = {}
        self._owners: dict[int, list[Worker]] = {}
        self._waiting: deque[tuple[int, Episode]] = deque()
        self._free: list[tuple[int, str]] = []
        """Heap of (minus credit, name), once for each worker; its credit may have changed since."""
        self._offered: set[str] = set()
        self._order = 0
        self.num_waiting = 0

    def bind(self, worker: Worker, buckets: tuple[int, ...], num_buckets: int) -> None:
        """A worker pulls from now on, as the owner of some buckets."""
        self.unbind(worker)
        self._workers[worker.name] = worker
        self._buckets[worker.name] = buckets if len(buckets) < num_buckets else ()
        for bucket in self._buckets[worker.name]:
            self._owners.setdefault(bucket, []).append(worker)
        self.look(worker)

    def unbind(self, worker: Worker) -> None:
        """It pulls no more."""
        if self._workers.pop(worker.name, None) is not None:
            for bucket in self._buckets.pop(worker.name):
                self._owners[bucket].remove(worker)

    def ask(self, episode: Episode) -> None:
        """A generation is requested."""
        self._order += 1
        episode.order = self._order
        self._place(episode, first=False)

    def ask_again(self, episodes: Iterable[Episode]) -> None:
        """They were handed back, or lost with their node."""
        for episode in sorted(episodes, key=lambda each: -each.order):
            self._place(episode, first=True)

    def _place(self, episode: Episode, *, first: bool) -> None:
        worker = next((each for each in self._owners.get(episode.bucket, ()) if each.credit > 0), None) or self._with_credit()
        if worker is not None:
            worker.take(episode)
            self._offer(worker)
            return
        episode.waits = True
        self.num_waiting += 1
        if first:
            self._waiting.appendleft((episode.order, episode))
        else:
            self._waiting.append((episode.order, episode))

    def look(self, worker: Worker) -> None:
        """A worker may have slots that are free: then it gets what waits longest, whosever bucket that is in."""
        if worker.name not in self._workers:
            return
        while worker.credit > 0 and (taken := self._oldest()) is not None:
            taken.waits = False
            self.num_waiting -= 1
            worker.take(taken)
        self._offer(worker)

    def _oldest(self) -> Episode | None:
        while self._waiting:
            order, episode = self._waiting.popleft()
            if episode.waits and episode.order == order:
                return episode
        return None

    def _offer(self, worker: Worker) -> None:
        if worker.name not in self._offered and worker.credit > 0:
            self._offered.add(worker.name)
            heappush(self._free, (-worker.credit, worker.name))

    def _with_credit(self) -> Worker | None:
        """One with much credit (what it had when it was offered decides)."""
        while self._free:
            credit, name = self._free[0]
            worker = self._workers.get(name)
            if worker is not None and worker.credit == -credit:
                return worker
            heappop(self._free)
            self._offered.discard(name)
            if worker is not None:
                self._offer(worker)
        return None
