"""The requests of one vLLM engine: who waits for a slot, who runs, and what each has had so far. Pure; lives in one loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from seamlessflow_rollout_worker.engines.base import Finish, SamplingParams

FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.INTERRUPTED}
"""By vLLM's reason; any other one means that the engine failed."""

HOW = "seamlessflow"
"""Key of a request's extra arguments that says how to draw."""

NOT_FINITE = "logits that are not finite: the weights are broken"
"""What an infinite logprob means (vllm_draws)."""

Span = tuple[int, int, int]
"""Weights version, first token, one behind the last."""


@dataclass(slots=True, eq=False)
class Request:
    """One request until it ends. ``name``: vLLM's for its present submission; empty: it is not submitted."""

    ticket: int
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    num_submissions: int = 0
    name: str = ""
    internal_id: str = ""
    num_seen: int = 0
    spans: list[Span] = field(default_factory=list)

    def submitted(self) -> str:
        """A new name: what still arrives under an old one belongs to nobody."""
        self.num_submissions += 1
        self.name = f"{self.ticket}.{self.num_submissions}"
        return self.name

    def note(self, num_tokens: int, weights_version: int) -> None:
        """So many tokens more, all sampled by one version."""
        if not num_tokens:
            return
        start, end = self.num_seen, self.num_seen + num_tokens
        if self.spans and self.spans[-1][0] == weights_version:
            start = self.spans.pop()[1]
        self.spans.append((weights_version, start, end))
        self.num_seen = end

    def disagreement(self, said: Iterable[Any] | None) -> str:
        """How vLLM's own account of versions (``weight_versions``) differs from ours; empty: it does not, or is not kept."""
        if said is None:
            return ""
        theirs = [(span.version, span.start, span.end) for span in said]
        ours = [(str(version), start, end) for version, start, end in self.spans]
        return "" if ours == theirs else f"tokens were stamped {ours}, and vLLM says {theirs}"


class Requests:
    """All that have not ended: each waits, or holds one of ``num_slots``."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._open: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        self._open[request.ticket] = request
        self._waiting.append(request)

    def find(self, ticket: int | None) -> Request | None:
        """An open one. None: it ended, or never was."""
        return None if ticket is None else self._open.get(ticket)

    def is_open(self, request: Request) -> bool:
        return request.ticket in self._open

    def is_running(self, request: Request) -> bool:
        return request.ticket in self._running

    def next_to_run(self) -> Request | None:
        """Give the longest waiting one a slot. None: nobody waits, or no slot is free."""
        if not self._waiting or len(self._running) >= self._num_slots:
            return None
        request = self._waiting.popleft()
        self._running[request.ticket] = request
        return request

    def end(self, request: Request) -> bool:
        """Forget one and free its slot. False: it had ended already."""
        self._running.pop(request.ticket, None)
        if request in self._waiting:
            self._waiting.remove(request)
        return self._open.pop(request.ticket, None) is not None

    def withdraw_unseen(self) -> list[str]:
        """Those that run and have no token yet wait again, first in line and in their order; the names they ran under."""
        unseen = [request for request in self._running.values() if not request.num_seen]
        names = [request.name for request in unseen if request.name]
        for request in reversed(unseen):
            del self._running[request.ticket]
            request.name = request.internal_id = ""
            self._waiting.appendleft(request)
        return names

    def clear(self) -> None:
        self._open.clear()
        self._waiting.clear()
        self._running.clear()


def how_to_draw(params: SamplingParams, seed: int) -> dict[str, Any]:
    """A request's extra arguments: temperature, top_p, and the seed as text, for it may be longer than 64 bits."""
    return {HOW: [params.temperature, params.top_p, str(seed)]}


def what_is_wrong(request: Request, completion: Any, logprobs: tuple[float, ...]) -> str:
    """Why an engine cannot go on after vLLM's ``completion``, which is noted already; empty: nothing."""
    if not all(map(math.isfinite, logprobs)):
        return NOT_FINITE
    if len(logprobs) != len(completion.token_ids):
        return f"{len(completion.token_ids)} tokens with {len(logprobs)} logprobs"
    if completion.finish_reason is not None and completion.finish_reason not in FINISHES:
        return f"a request that ended with {completion.finish_reason!r}"
    return request.disagreement(completion.weight_versions)
