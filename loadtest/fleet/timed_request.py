"""One request of a timed engine: all that it will sample, drawn ahead, and how much of that was reported. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from seamlessflow_rollout_worker.engines.base import Chunk, Finish, SamplingParams

from .timed_law import Law

LengthOf = Callable[[int, int], int | None]
"""(seed, budget left) ▶ tokens left until its stop token; None: it has no length of its own."""


@dataclass(slots=True)
class TimedRequest:
    """``params`` with a seed."""

    prompt: list[int]
    params: SamplingParams
    weights_version: int
    """That it began with."""
    ids: list[int] = field(default_factory=list)
    """All that it will sample, while these weights stand."""
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    num_reported: int = 0
    base: int = 0
    """Tokens it had when the device was last told of it."""

    def draw_rest(self, law: Law, length_of: LengthOf | None, max_context_tokens: int) -> None:
        """Draw all that is not reported, by the weights that stand now."""
        params, done = self.params, self.num_reported
        assert params.seed is not None
        left, self.finish = min(params.max_tokens, max_context_tokens - len(self.prompt)), Finish.LENGTH
        own = length_of(params.seed, params.max_tokens) if length_of else None
        if own is not None and params.stop_token_ids and own <= left:
            left, self.finish = max(1, own), Finish.STOP
        position = len(self.prompt) + done
        ids, logprobs = law.draw(params.seed, position, left - done, temperature=params.temperature, top_p=params.top_p)
        if self.finish is Finish.STOP:
            ids[-1], logprobs[-1] = params.stop_token_ids[0], 0.0  # the length decides, so it is certain
        elif (stop := next((at for at, token in enumerate(ids) if token in params.stop_token_ids), None)) is not None:
            ids, logprobs, self.finish = ids[: stop + 1], logprobs[: stop + 1], Finish.STOP
        self.ids[done:], self.logprobs[done:] = ids, logprobs

    def report(self, until: int, weights_version: int, finish: Finish | None = None) -> Chunk | None:
        """Its tokens up to the ``until``-th that were not reported yet; None: there is nothing to say."""
        start = self.num_reported
        if until <= start and finish is None:
            return None
        self.num_reported = until
        return Chunk(tuple(self.ids[start:until]), tuple(self.logprobs[start:until]), weights_version, finish)
