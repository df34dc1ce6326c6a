"""The queue of generations: owners of affinity buckets first, then whoever has a free slot. Pure.

As consumers with the ``prioritized`` group policy do: a generation goes to the owner of its bucket when that has credit, else
to another with credit; what finds none waits, oldest first, and a handed-back one is the oldest of all.

Generations that should be long come first where they are at home: an owner looks first for those of its own buckets, then for
all that are not long, and last for the long ones of others. One that is lent owns none of them, and gets what no other has
credit for.

The first call of an episode of several calls is in the unowned bucket: the worker with most room gets it, a lent one
only where no other has room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Protocol

from .simulator_episodes import Episode


class Worker(Protocol):
    """A node that pulls."""

    name: str

    owned: tuple[int, ...]

    @property
    def credit(self) -> int: ...
    @property
    def room(self) -> int: ...

    @property
    def is_lent(self) -> bool: ...

    def take(self, episode: Episode) -> None: ...


class Queue:
    """``bind`` and ``unbind`` say who pulls; ``look`` lets a worker fill its free slots."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._buckets: dict[str, tuple[int, ...]] = {}
        self._owners: dict[int, list[Worker]] = {}
        self._waiting: deque[tuple[int, Episode]] = deque()
        self._long: dict[int, deque[tuple[int, Episode]]] = {}
        """Those that should be long, by bucket."""
        self._new: deque[tuple[int, Episode]] = deque()
        """Those that begin episodes of several calls."""
        self._free: list[tuple[int, str]] = []
        """Heap of (minus credit, name), once for each worker; its credit may have changed since."""
        self._offered: set[str] = set()
        self._order = 0
        self.num_waiting = 0

    def bind(self, worker: Worker, buckets: tuple[int, ...], num_buckets: int) -> None:
        """A worker pulls from now on, as the owner of some buckets, counted over all kinds of generations."""
        self.unbind(worker)
        self._workers[worker.name] = worker
        of_kind = Counter(bucket // num_buckets for bucket in buckets)
        self._buckets[worker.name] = tuple(b for b in buckets if of_kind[b // num_buckets] < num_buckets)
        for bucket in self._buckets[worker.name]:
            self._owners.setdefault(bucket, []).append(worker)
        worker.owned = self._buckets[worker.name]
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
        if episode.bucket < 0:
            self._place_new(episode, first=first)
            return
        worker = next((each for each in self._owners.get(episode.bucket, ()) if each.credit > 0), None)
        worker = worker or (self._that_stays() if episode.is_long else None) or self._with_credit()
        if worker is not None:
            worker.take(episode)
            self._offer(worker)
            return
        self._wait(episode, self._long.setdefault(episode.bucket, deque()) if episode.is_long else self._waiting, first=first)

    def _place_new(self, episode: Episode, *, first: bool) -> None:
        with_room = [worker for worker in self._workers.values() if worker.room > 0]
        worker = min(with_room, key=lambda each: (each.is_lent, -each.room, each.name), default=None)
        if worker is None:
            self._wait(episode, self._new, first=first or episode.is_long)
        else:
            worker.take(episode)

    def _wait(self, episode: Episode, waiting: deque[tuple[int, Episode]], *, first: bool) -> None:
        episode.waits = True
        self.num_waiting += 1
        if first:
            waiting.appendleft((episode.order, episode))
        else:
            waiting.append((episode.order, episode))

    def look(self, worker: Worker) -> None:
        """A worker may have slots that are free: then it gets what waits longest of what is its to take first, whosever bucket
        that is in."""
        if worker.name not in self._workers:
            return
        while worker.credit > 0 and (taken := self._first_for(worker)) is not None:
            taken.waits = False
            self.num_waiting -= 1
            worker.take(taken)
        while worker.room > 0 and (taken := _oldest(self._new)) is not None:
            taken.waits = False
            self.num_waiting -= 1
            worker.take(taken)
        self._offer(worker)

    def _first_for(self, worker: Worker) -> Episode | None:
        own = self._buckets[worker.name]
        return self._oldest_long(own) or _oldest(self._waiting) or self._oldest_long(self._long)

    def _oldest_long(self, buckets: Iterable[int]) -> Episode | None:
        waiting = [queue for bucket in buckets if (queue := self._long.get(bucket)) and _clean(queue)]
        return _oldest(min(waiting, key=lambda queue: queue[0][0])) if waiting else None

    def _offer(self, worker: Worker) -> None:
        if worker.name not in self._offered and worker.credit > 0:
            self._offered.add(worker.name)
            heappush(self._free, (-worker.credit, worker.name))

    def _that_stays(self) -> Worker | None:
        """One with most credit that is not lent."""
        stay = [worker for worker in self._workers.values() if worker.credit > 0 and not worker.is_lent]
        return min(stay, key=lambda each: (-each.credit, each.name), default=None)

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


def _clean(waiting: deque[tuple[int, Episode]]) -> bool:
    """Forget what waits no more at its head; whether anything is left."""
    while waiting and not (waiting[0][1].waits and waiting[0][1].order == waiting[0][0]):
        waiting.popleft()
    return bool(waiting)


def _oldest(waiting: deque[tuple[int, Episode]]) -> Episode | None:
    return waiting.popleft()[1] if _clean(waiting) else None
