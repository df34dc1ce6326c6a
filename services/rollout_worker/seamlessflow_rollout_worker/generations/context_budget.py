"""Whose contexts a worker's engine has, and for how many new episodes there is room. Pure: time is an argument.

    a new one ──begins──▶ sampled ──▶ its tool works, its context is kept ──begins──▶ …
        ▲ as many as ``room``               └── over: it ended; or silent for so long that it is counted no more

Who takes more episodes than contexts fit into its cache gives up what it will be asked for next, and prefills it again at each
call. Only whether a *new* episode is taken is a choice: a call of one whose context is here is best sampled here, however full
it is. So what is limited is episodes, not calls. Contexts grow while an episode goes on, so each counts as the mean of what
calls had of late, and what they have now is looked at besides: now and then many are longer than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

FILL = 0.85
"""Of the cache that mean contexts are to fill: now and then many are longer than that, and what ended stays in a cache for a
while."""
MEMORY_CALLS = 1000
"""Over which the mean context is taken."""
COUNTED_SECONDS = 60.0
"""An episode that called for nothing for so long is not counted. To feed it again takes a large node a sixth of a second; its
place is worth more to another that waits for one. And no device is idle because agents do not come back."""
LOOK_SECONDS = 1.0
"""After its call, and after twice, four times … as long, it is asked whether an episode has ended."""
HOPE = 0.5
"""Of a model's longest context, or of the slots: what an episode is taken for, how many are taken, as long as nothing has ended
here. With each end what was seen counts more; all of it once as many ended as are here."""


@dataclass(slots=True)
class _Held:
    """One episode. ``silence``: the how-many-th since its first call."""

    bucket: int
    tokens: int = 0
    """Of its context, as far as it is known: of the newest call the prompt, or at its end prompt and answer."""
    num_running: int = 0
    silent_since: float = 0.0
    silence: int = 0


class Contexts:
    """Of one engine. ``cache_tokens`` None: it cannot tell, so all that limits it is its slots.

    longest_context: most tokens of one sequence.
    """

    def __init__(self, num_slots: int, *, cache_tokens: int | None = None, longest_context: int = 0) -> None:
        self._num_slots, self._cache_tokens = num_slots, cache_tokens
        self._hoped = min(HOPE * longest_context, (cache_tokens or 0) / max(1.0, HOPE * num_slots))
        self._held: dict[str, _Held] = {}
        self._in_bucket: Counter[int] = Counter()
        self._num_running = self._num_tokens = 0
        self._mean, self._num_calls = 0.0, 0
        self._num_ended = 0
        self._looks: list[tuple[float, str, int]] = []
        """Heap of (when to ask whether it has ended, episode, silence)."""

    @property
    def num_held(self) -> int:
        """Episodes that are counted."""
        return len(self._held)

    @property
    def num_running(self) -> int:
        """Calls that are sampled, or wait for that here."""
        return self._num_running

    @property
    def fitting(self) -> int | None:
        """Episodes whose contexts fit; None: not known. At least 1."""
        if self._cache_tokens is None:
            return None
        return max(1, int(FILL * self._cache_tokens / self._size))

    @property
    def room(self) -> int:
        """How many new episodes are welcome. Never negative."""
        free = self._num_slots - self._num_running
        fitting = self.fitting
        if self._cache_tokens is None or fitting is None:
            return max(0, free)
        now = (FILL * self._cache_tokens - self._num_tokens) / self._size if self._held else fitting
        return max(0, int(min(free, fitting - len(self._held), now)))

    @property
    def _size(self) -> float:
        """What an episode is taken for: tokens of its context."""
        unsure = max(0.0, 1.0 - self._num_ended / max(1, len(self._held)))
        return max(1.0, self._mean, self._hoped * unsure)

    def begins(self, episode: str, bucket: int, prompt: int, owned: Sequence[int] = ()) -> int:
        """A call of it begins here, with so many tokens of prompt. Returns the affinity bucket in which its next ones find this
        worker: that of the call, where it is one of ours or we have none, else the one of ours with the fewest episodes."""
        held = self._held.get(episode)
        if held is None:
            held = self._held[episode] = _Held(self._chosen(bucket, owned))
            self._in_bucket[held.bucket] += 1
        elif held.bucket != (chosen := self._chosen(bucket, owned)) and held.bucket not in owned:
            self._in_bucket[held.bucket] -= 1
            self._in_bucket[chosen] += 1
            held.bucket = chosen
        held.num_running += 1
        self._num_running += 1
        self._has(held, prompt)
        return held.bucket

    def sampled(self, episode: str, context: int, now: float) -> None:
        """A call of it ended here, with so many tokens of prompt and answer: its context stays for the next one."""
        self._num_calls += 1
        self._mean += (context - self._mean) / min(self._num_calls, MEMORY_CALLS)
        held = self._held[episode]
        held.num_running -= 1
        self._num_running -= 1
        self._has(held, context)
        held.silent_since, held.silence = now, held.silence + 1
        heappush(self._looks, (now + LOOK_SECONDS, episode, held.silence))

    def left(self, episode: str) -> None:
        """A call of it that began here goes on elsewhere."""
        held = self._held[episode]
        held.num_running -= 1
        self._num_running -= 1
        if not held.num_running:
            self._forget(episode)

    def over(self, episode: str) -> None:
        """It ended. Nothing where it is not counted, or a call of it is still here."""
        held = self._held.get(episode)
        if held is not None and not held.num_running:
            self._forget(episode)
            self._num_ended += 1

    def to_look_for(self, now: float) -> list[str]:
        """Episodes of which it is time to ask whether they have ended; each again after twice as long. Who was silent for
        ``COUNTED_SECONDS`` is forgotten."""
        due: list[str] = []
        while self._looks and self._looks[0][0] <= now:
            _, name, silence = heappop(self._looks)
            held = self._held.get(name)
            if held is None or held.num_running or held.silence != silence:
                continue
            if (silent := now - held.silent_since) >= COUNTED_SECONDS:
                self._forget(name)
                continue
            due.append(name)
            heappush(self._looks, (min(now + max(LOOK_SECONDS, silent), held.silent_since + COUNTED_SECONDS), name, silence))
        return due

    def holds(self, episode: str) -> bool:
        """Whether it is counted."""
        return episode in self._held

    def clear(self) -> None:
        """The device is given up, and all contexts with it; what contexts were like is still known."""
        for name in [name for name, held in self._held.items() if not held.num_running]:
            self._forget(name)

    def _has(self, held: _Held, tokens: int) -> None:
        self._num_tokens += tokens - held.tokens
        held.tokens = tokens

    def _forget(self, episode: str) -> None:
        held = self._held.pop(episode)
        self._has(held, 0)
        self._in_bucket[held.bucket] -= 1

    def _chosen(self, bucket: int, owned: Sequence[int]) -> int:
        if bucket in owned or not owned:
            return bucket
        return min(owned, key=lambda each: (self._in_bucket[each], each))
