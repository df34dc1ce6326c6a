"""One device that decodes a batch continuously: which request is done when, without looking at single tokens. Pure.

    waiting ──slot and room in the cache──▶ prefill owed ──paid──▶ decoding ──last token──▶ Completion
       ▲  interrupt takes a request out of any of these; what it sampled so far is the caller's to hand on

Every decode step gives one token to each request in the batch and lasts ``Cost.step_seconds(batch, context)``; what new
requests owe of prefill is paid before decoding goes on (chunking would spread it, and cost the same). Between two changes of
the batch time has a closed form, so an event costs O(log n), whatever it spans. A change in the middle of a step keeps the
share of the step that is done.

Always true, in any order of calls: time never goes back; tokens of completions and interruptions are exactly those sampled; a
device with work in its batch, not paused, works.
Room in the cache is reserved for a request's prompt and half of its tokens, which is what a batch of many holds on average;
real engines admit by what is there now and, rarely, preempt.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from .cost import Cost

EARLY = 1e-9
"""Seconds by which ``advance`` may come short of a completion that rounding put a little later."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A request got its last token."""

    request: str
    at: float
    tokens: int
    """All that were sampled of it on this engine."""


@dataclass(slots=True)
class _Request:
    name: str
    prompt: int
    tokens: int
    """To be sampled here."""
    owed: int
    """Tokens to prefill when it gets its slot."""
    room: int
    """Tokens of the cache that are reserved for it."""
    first: int = -1
    """Decode steps done by the engine when it joined; -1: it waits."""


class Engine:
    """Call ``advance(now)`` before anything else at a new time; ``next_completion`` says when it is due at the latest."""

    def __init__(self, cost: Cost, *, slots: int | None = None, now: float = 0.0) -> None:
        self.cost = cost
        self.slots = cost.slots if slots is None else min(slots, cost.slots)
        self.now = now
        self.paused = False
        self.busy_seconds = self.prefill_seconds = 0.0
        """Spent working, and of that on prefill."""
        self.prefilled_tokens = self.sampled_tokens = 0
        self._requests: dict[str, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._batch: list[tuple[int, int, str]] = []
        """Heap of (step after which it is done, order, request); entries of interrupted requests stay until they surface."""
        self._order = 0
        self._size = 0
        self._context = 0
        self._reserved = 0
        self._steps = 0
        self._share = 0.0
        """Of the running step that is done."""
        self._debt = 0.0
        """Seconds of prefill that are owed."""

    def add(self, request: str, *, prompt: int, tokens: int, cached: int = 0) -> None:
        """Sample ``tokens`` (at least 1) after a prompt of which ``cached`` tokens need no prefill.

        Raises ValueError for a name that is there already or when it could never fit.
        """
        if request in self._requests or tokens < 1 or not 0 <= cached <= prompt or prompt + tokens > self.cost.kv_tokens:
            raise ValueError(f"{request}: cannot sample {tokens} tokens after {prompt} ({cached} cached)")
        taken = _Request(request, prompt, tokens, prompt - cached, prompt + tokens // 2)
        self._requests[request] = taken
        self._waiting.append(taken)
        self._admit()

    def interrupt(self, request: str) -> int:
        """Take a request out; returns the tokens sampled of it. Raises KeyError when it is not here (any more)."""
        taken = self._requests.pop(request)
        if taken.first < 0:
            self._waiting.remove(taken)
            return 0
        sampled = self._steps - taken.first
        self._leave(taken, sampled)
        self._admit()
        return sampled

    def interrupt_all(self) -> dict[str, int]:
        """Take all requests out, oldest first; returns the tokens sampled of each."""
        taken = {name: self.sampled(name) for name in self._requests}
        self._requests.clear()
        self._waiting.clear()
        self._batch.clear()
        self._size = self._context = self._reserved = 0
        self._share = self._debt = 0.0
        return taken

    def sampled(self, request: str) -> int:
        """Tokens sampled so far of a request that is here."""
        first = self._requests[request].first
        return self._steps - first if first >= 0 else 0

    def pause(self) -> None:
        """Stand still, keeping everything (for new weights)."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    @property
    def requests(self) -> tuple[str, ...]:
        """All that are here, oldest first."""
        return tuple(self._requests)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_running(self) -> int:
        """In the batch."""
        return self._size

    @property
    def free_slots(self) -> int:
        """How many more it may be given without one having to wait for a slot. Never negative."""
        return max(0, self.slots - len(self._requests))

    @property
    def num_steps(self) -> int:
        """Decode steps done."""
        return self._steps

    @property
    def reserved(self) -> int:
        """Tokens of the cache that the batch has reserved."""
        return self._reserved

    @property
    def context(self) -> int:
        """Tokens whose keys and values the batch holds."""
        return self._context

    def next_completion(self) -> float | None:
        """When the next request is done if nothing changes; None: nothing runs, or it is paused."""
        if self.paused or not self._surface():
            return None
        return self.now + self._debt + self._seconds(self._batch[0][0] - self._steps)

    def advance(self, to: float) -> list[Completion]:
        """Work until ``to``; returns what was done on the way, in order. Raises ValueError when ``to`` lies in the past."""
        if to < self.now:
            raise ValueError(f"time goes from {self.now} to {to}")
        done: list[Completion] = []
        while not self.paused and self._surface():
            steps = self._batch[0][0] - self._steps
            if self.now + self._debt + self._seconds(steps) - to > EARLY:
                self._work_part(to - self.now)
                break
            end = min(self.now + self._debt + self._seconds(steps), max(to, self.now))
            self.busy_seconds += end - self.now
            self.prefill_seconds += self._debt
            self.now = end
            self._debt = self._share = 0.0
            self._step(steps)
            while self._surface() and self._batch[0][0] == self._steps:
                taken = self._requests.pop(heappop(self._batch)[2])
                self._leave(taken, taken.tokens)
                done.append(Completion(taken.name, self.now, taken.tokens))
            self._admit()
        self.now = max(self.now, to)
        return done

    def _admit(self) -> None:
        """Give slots to those that wait, in order; the first that does not fit stops the rest."""
        while self._waiting and self._size < self.slots:
            taken = self._waiting[0]
            if self._size and self._reserved + taken.room > self.cost.kv_tokens:
                return
            self._waiting.popleft()
            taken.first = self._steps
            self._order += 1
            heappush(self._batch, (self._steps + taken.tokens, self._order, taken.name))
            self._size += 1
            self._context += taken.prompt
            self._reserved += taken.room
            self._debt += self.cost.prefill_seconds(taken.owed)
            self.prefilled_tokens += taken.owed

    def _leave(self, taken: _Request, sampled: int) -> None:
        self._size -= 1
        self._context -= taken.prompt + sampled
        self._reserved -= taken.room
        if self._size == 0:
            self._debt = self._share = 0.0  # nobody is left to pay for

    def _surface(self) -> bool:
        """Drop entries of interrupted requests from the top; whether one is left."""
        while self._batch:
            end, _, name = self._batch[0]
            taken = self._requests.get(name)
            if taken is not None and taken.first >= 0 and taken.first + taken.tokens == end:
                return True
            heappop(self._batch)
        return False

    def _seconds(self, steps: int) -> float:
        """How long so many more steps last, the running one in part."""
        first = self.cost.step_seconds(self._size, self._context)
        grows = self.cost.decode_per_context * self._size
        return (1.0 - self._share) * first + (steps - 1) * (first + grows * steps / 2)

    def _work_part(self, seconds: float) -> None:
        """Work for a time in which no request is done."""
        self.busy_seconds += seconds
        paid = min(self._debt, seconds)
        self._debt -= paid
        self.prefill_seconds += paid
        seconds -= paid
        first = self.cost.step_seconds(self._size, self._context)
        rest = (1.0 - self._share) * first
        if seconds < rest:
            self._share = min(self._share + seconds / first, math.nextafter(1.0, 0.0))
            return
        self._share = 0.0
        self._step(1)
        seconds -= rest
        most = self._batch[0][0] - self._steps - 1  # rounding must not finish anybody here
        steps = min(most, self._steps_in(seconds))
        seconds -= self._seconds(steps) if steps else 0.0
        self._step(steps)
        step = self.cost.step_seconds(self._size, self._context)
        self._share = min(max(0.0, seconds / step), math.nextafter(1.0, 0.0))

    def _steps_in(self, seconds: float) -> int:
        """Whole steps that fit, from the beginning of one."""
        first = self.cost.step_seconds(self._size, self._context)
        grows = self.cost.decode_per_context * self._size
        if grows <= 0.0:
            return int(seconds / first)
        half = first - grows / 2
        return int((math.sqrt(half * half + 2 * grows * seconds) - half) / grows)

    def _step(self, steps: int) -> None:
        self._steps += steps
        self._context += steps * self._size
        self.sampled_tokens += steps * self._size
