"""How many tokens an episode should take, from what others took, and which are long. A fold over ends; pure.

    what the task's author says ─▶ else the mean of its prompt's earlier episodes ─▶ else the mean of its environment

An episode is *long* when that is ``long_tail`` times the mean of all episodes of the run, or more. Nothing is long before
anything has ended, and a run that does not ask for it remembers nothing.

Always true: the same ends give the same answers, in whatever order they came, as long as there are not more than
``MOST_PROMPTS`` different prompts; beyond those, the ones that ended longest ago are forgotten.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass, field

from seamlessflow.contracts import EpisodeEnded, EpisodeStatus, TaskSubmitted

MOST_PROMPTS = 100_000
"""Different prompts that are remembered, 30 MB."""
CUT_SHORT = (EpisodeStatus.RUNNER_LOST, EpisodeStatus.NOT_STARTED, EpisodeStatus.RUN_ENDED)
"""Ends that say nothing of how long an episode takes. One that was killed at its deadline took at least what it took."""


@dataclass(slots=True)
class _Mean:
    total: int = 0
    count: int = 0

    def add(self, tokens: int) -> None:
        self.total += tokens
        self.count += 1

    @property
    def value(self) -> int | None:
        return round(self.total / self.count) if self.count else None


@dataclass
class Lengths:
    """Of one run. ``long_tail``: as ``fleet.long_tail`` of its document."""

    long_tail: float | None
    _all: _Mean = field(default_factory=_Mean)
    _by_env: dict[str, _Mean] = field(default_factory=dict)
    _by_prompt: OrderedDict[bytes, _Mean] = field(default_factory=OrderedDict)

    def ended(self, task: TaskSubmitted, end: EpisodeEnded) -> None:
        """An episode of a task is over; each attempt is to be told once."""
        if self.long_tail is None or end.sampled_tokens is None or end.status in CUT_SHORT:
            return
        key = _key(task)
        for mean in (self._all, self._by_env.setdefault(task.env, _Mean()), self._by_prompt.setdefault(key, _Mean())):
            mean.add(end.sampled_tokens)
        self._by_prompt.move_to_end(key)
        if len(self._by_prompt) > MOST_PROMPTS:
            self._by_prompt.popitem(last=False)

    def expected(self, task: TaskSubmitted) -> int | None:
        """Tokens that an episode of it should take. None: nothing is known, or nobody wants to know."""
        if self.long_tail is None:
            return None
        if task.expected_tokens is not None:
            return task.expected_tokens
        known = self._by_prompt.get(_key(task)) or self._by_env.get(task.env)
        return None if known is None else known.value

    def is_long(self, task: TaskSubmitted) -> bool:
        """Whether its episodes are expected to be among the long ones."""
        expected, mean = self.expected(task), self._all.value
        if self.long_tail is None or expected is None or not mean:
            return False
        return expected >= self.long_tail * mean


def _key(task: TaskSubmitted) -> bytes:
    """The same for tasks that ask the same: by their prompt, or by their data where they have none."""
    asked = task.prompt or json.dumps(task.data, sort_keys=True, default=str)
    return hashlib.blake2b(f"{task.env}\0{asked}".encode(), digest_size=16).digest()
