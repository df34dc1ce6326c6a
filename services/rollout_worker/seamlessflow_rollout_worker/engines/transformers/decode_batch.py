"""Continuous batching on one transformers model: sequences join and leave between any two tokens.

``step`` is one forward pass over a line of new tokens: one of each sequence that decodes, and as many prompt tokens of
those that just came as the pass has room for. A pass reads all weights once, whatever it computes, so prompts travel
with the decoding rather than in passes of their own. It is plain synchronous torch code for one thread;
``transformers_engine`` gives it a thread and an asyncio face.

Why not ``model.init_continuous_batching``: on a CPU its attention spans all requests at once and masks the others
away, so a step costs the square of the streams, and it cannot share prefixes across new weights. It is an engine of
its own (``continuous``); docs/adr/0004-engine-loop.md compares them, ``./task load:engines`` measures them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from seamlessflow_rollout_worker.engines.base import Finish, PrefixUse, SamplingParams
from seamlessflow_rollout_worker.engines.token_sampler import Draws, draw

from .causal_model import CausalModel
from .kv_cache import RowCache, shared_prefix_length
from .packed_attention import New

MAX_PASS_TOKENS = 256
"""Tokens of one pass: more would delay interrupts and updates, fewer would waste what reading the weights costs."""
MIN_PROMPT_TOKENS = 16
"""Prompt tokens that a pass has room for however many sequences decode in it."""
WORTH_WAITING = 16
"""A sequence waits for the next pass when that saves it this many tokens, which a sequence of this pass computes now."""
MOST_SPARE_ROWS = 64
"""As many rows as slots, but at most these, keep finished sequences for those that start alike."""


@dataclass(slots=True)
class Sequence:
    """One request as the batch sees it. ``token_ids`` grows by what is sampled."""

    ticket: int
    token_ids: list[int]
    params: SamplingParams
    draws: Draws
    num_left: int
    """Tokens that may still be sampled."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token of one request."""

    ticket: int
    token_id: int
    logprob: float
    finish: Finish | None
    is_first: bool
    """Nothing was sampled for the request before."""
    is_streamed: bool


class DecodeBatch:
    """The sequences being decoded, those waiting for a row, and the cache they share."""

    def __init__(self, model: CausalModel, *, num_slots: int, max_tokens: int) -> None:
        self._model = model
        self._num_slots = num_slots
        self._max_tokens = max_tokens
        self._cache: RowCache | None = None
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self.prefix_use = PrefixUse()

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, first come first served."""
        self._waiting.append(sequence)

    @torch.inference_mode()  # the cache was made in it, and may only be written in it
    def remove(self, ticket: int) -> bool:
        """Take a sequence out, wherever it is; False when it is nowhere."""
        for row, sequence in enumerate(self._running):
            if sequence.ticket == ticket:
                self._close_row(row)
                return True
        before = len(self._waiting)
        self._waiting = deque(s for s in self._waiting if s.ticket != ticket)
        return len(self._waiting) < before

    def forget_cache(self) -> None:
        """The weights changed: no new sequence may start from what is stored. Running ones go on with theirs."""
        if self._cache is not None:
            self._cache.forget()

    def release_cache(self) -> None:
        """Free the cache; running sequences wait again, first in line, and will be prefilled with all they have."""
        self._waiting.extendleft(reversed(self._running))
        self._running.clear()
        self._cache = None

    @torch.inference_mode()
    def step(self) -> list[Sampled]:
        """One forward pass; what it sampled, at most a token for each sequence. Empty: nothing to do, or a prompt half read."""
        self._admit()
        if not self._running:
            return []
        rows, logits_BV = self._forward(self._share())
        return self._sample(rows, logits_BV) if rows else []

    def _rows(self) -> RowCache:
        if self._cache is None:
            num_rows = self._num_slots + min(self._num_slots, MOST_SPARE_ROWS)
            self._cache = self._model.make_cache(num_rows=num_rows, max_tokens=self._max_tokens)
        return self._cache

    def _admit(self) -> None:
        """Open rows for waiting sequences while there are free slots and the next pass has room for their tokens."""
        cache, passed_over = self._rows(), list[Sequence]()
        room = MAX_PASS_TOKENS - sum(self._prompt_tokens_left(row) for row in range(len(self._running)))
        while self._waiting and len(self._running) < self._num_slots and room > 0:
            sequence = self._waiting.popleft()
            if self._is_worth_waiting(sequence):
                passed_over.append(sequence)
                continue
            shared = cache.open_row(len(self._running), sequence.token_ids)
            self._running.append(sequence)
            self.prefix_use.prompt_tokens += len(sequence.token_ids)
            self.prefix_use.cached_tokens += shared
            room -= len(sequence.token_ids) - shared
        self._waiting.extendleft(reversed(passed_over))

    def _is_worth_waiting(self, sequence: Sequence) -> bool:
        """Whether a sequence that is being prefilled will soon hold more of this one's beginning than any row does now."""
        rows = self._rows().rows
        prefilling = [
            other
            for row, other in enumerate(self._running)
            if self._prompt_tokens_left(row) > WORTH_WAITING and rows[row].is_shareable
        ]
        if not prefilling:
            return False
        ours = sequence.token_ids[:-1]
        enough = self._rows().longest_shared_prefix(sequence.token_ids)[1] + WORTH_WAITING - 1
        return any(shared_prefix_length(other.token_ids, ours, at_least=enough) for other in prefilling)

    def _pending(self, row: int) -> int:
        """Tokens of a running sequence that its row does not hold yet: 1 while it decodes."""
        return len(self._running[row].token_ids) - len(self._rows().rows[row].token_ids)

    def _prompt_tokens_left(self, row: int) -> int:
        """The same for a prompt that is being read; 0 while it decodes."""
        pending = self._pending(row)
        return pending if pending > 1 else 0

    def _share(self) -> list[New]:
        """What each running row brings to the pass: decoding rows their token, and prompts, in order, as much as has room."""
        pending = [self._pending(row) for row in range(len(self._running))]
        room = max(MIN_PROMPT_TOKENS, MAX_PASS_TOKENS - pending.count(1))
        news = []
        for row, count in enumerate(pending):
            taken = 1 if count == 1 else max(0, min(count, room))
            room -= taken if count > 1 else 0
            news.append(New(len(self._rows().rows[row].token_ids), taken))
        return news

    def _forward(self, news: list[New]) -> tuple[list[int], Tensor]:
        """Compute the rows' new tokens: the rows that are whole now, and logits after the last token of each."""
        cache, ids, whole, lasts = self._rows(), list[int](), list[int](), list[int]()
        for row, new in enumerate(news):
            ids += self._running[row].token_ids[new.start : new.start + new.count]
            if new.start + new.count == len(self._running[row].token_ids):
                whole.append(row)
                lasts.append(len(ids) - 1)
        logits_BV = self._model.logits(ids, lasts, news, cache)
        for row, new in enumerate(news):
            cache.rows[row].token_ids += self._running[row].token_ids[new.start : new.start + new.count]
        return whole, logits_BV

    def _sample(self, rows: list[int], logits_BV: Tensor) -> list[Sampled]:
        sequences = [self._running[row] for row in rows]
        uniforms = [s.draws.at(len(s.token_ids)) if s.params.temperature else 0.0 for s in sequences]
        tokens, logprobs = draw(logits_BV, [s.params for s in sequences], uniforms)
        sampled = []
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            sequence.token_ids.append(token)
            is_first = sequence.num_left == sequence.params.max_tokens
            sequence.num_left -= 1
            finish = self._finish_of(sequence)
            sampled.append(Sampled(sequence.ticket, token, logprob, finish, is_first, sequence.params.is_streamed))
        for row, last in reversed(list(zip(rows, sampled, strict=True))):
            if last.finish is not None:
                self._close_row(row)
        return sampled

    def _finish_of(self, sequence: Sequence) -> Finish | None:
        if sequence.token_ids[-1] in sequence.params.stop_token_ids:
            return Finish.STOP
        used_up = sequence.num_left <= 0 or len(sequence.token_ids) >= self._max_tokens
        return Finish.LENGTH if used_up else None

    def _close_row(self, row: int) -> None:
        """Keep the running rows contiguous: the last one moves into the gap; the closed one stays for sharing."""
        last = len(self._running) - 1
        self._rows().close_row(row, last)
        self._running[row] = self._running[last]
        self._running.pop()
