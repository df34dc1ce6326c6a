"""Estimates how many tokens an episode takes, from earlier episodes, and which ones are long. A fold over ends; pure.

    the task's expected_tokens ─▶ else the mean of its prompt's earlier episodes ─▶ else the mean of its environment

An episode is *long* when that is ``long_tail`` times the mean of all episodes of the run, or more. Nothing is long before
anything has ended, and a run without ``long_tail`` stores nothing.

Always true: the same ends give the same answers, in any order, as long as there are not more than
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
"""Ends that tell nothing of an episode's length. One killed at its deadline took at least its tokens, so it counts."""


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
class LengthEstimator:
    """Estimates of one run. ``long_tail``: as ``fleet.long_tail`` of its document."""

    long_tail: float | None
    _all: _Mean = field(default_factory=_Mean)
    _by_env: dict[str, _Mean] = field(default_factory=dict)
    _by_prompt: OrderedDict[bytes, _Mean] = field(default_factory=OrderedDict)

    def ended(self, task: TaskSubmitted, end: EpisodeEnded) -> None:
        """Count an ended episode of a task; each attempt must be counted once."""
        if self.long_tail is None or end.sampled_tokens is None or end.status in CUT_SHORT:
            return
        key = _key(task)
        for mean in (self._all, self._by_env.setdefault(task.env, _Mean()), self._by_prompt.setdefault(key, _Mean())):
            mean.add(end.sampled_tokens)
        self._by_prompt.move_to_end(key)
        if len(self._by_prompt) > MOST_PROMPTS:
            self._by_prompt.popitem(last=False)

    def expected(self, task: TaskSubmitted) -> int | None:
        """Tokens that an episode of the task should take. None: not known, or the run has no ``long_tail``."""
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
    """Digest of the prompt, or of the data of a task without prompt: equal for equal tasks."""
    asked = task.prompt or json.dumps(task.data, sort_keys=True, default=str)
    return hashlib.blake2b(f"{task.env}\0{asked}".encode(), digest_size=16).digest()
