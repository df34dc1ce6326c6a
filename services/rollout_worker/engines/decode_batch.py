"""Continuous batching on one transformers model: sequences join and leave between any two tokens.

``step`` is one forward pass and one token for each sequence in it: a *prefill* for sequences that wait and find a free
row, otherwise a *decode* of all rows. It is plain synchronous torch code for one thread; ``transformers_engine`` gives
it a thread and an asyncio face.

Why not ``model.init_continuous_batching``: on a CPU its attention spans all requests at once and masks the others
away, so a step costs the square of the streams, and it cannot share prefixes across new weights. It is an engine of
its own (``continuous``); docs/adr/0004-engine-loop.md compares them, ``./task load:engines`` measures them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from services.rollout_worker.engines.base import Finish, SamplingParams
from services.rollout_worker.engines.causal_model import CausalModel
from services.rollout_worker.engines.draws import Draws
from services.rollout_worker.engines.row_cache import RowCache
from services.rollout_worker.engines.sampling import draw

MAX_PREFILL_TOKENS = 1024
"""Tokens of one prefill pass, padding included: more would delay interrupts, fewer would waste the matrix units."""


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


class DecodeBatch:
    """The sequences being decoded, those waiting for a row, and the cache they share."""

    def __init__(self, model: CausalModel, *, num_rows: int, max_tokens: int) -> None:
        self._model = model
        self._num_rows = num_rows
        self._max_tokens = max_tokens
        self._cache: RowCache | None = None
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()

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
        """One forward pass; what it sampled, one token for each sequence in it. Empty when there is nothing to do."""
        first_new = len(self._running)
        if self._waiting and first_new < self._num_rows:
            return self._sample(first_new, self._prefill(first_new))
        if self._running:
            return self._sample(0, self._decode())
        return []

    def _rows(self) -> RowCache:
        if self._cache is None:
            self._cache = self._model.make_cache(num_rows=self._num_rows, max_tokens=self._max_tokens)
        return self._cache

    def _decode(self) -> Tensor:
        cache, num_rows = self._rows(), len(self._running)
        ids_B1 = torch.tensor([[s.token_ids[-1]] for s in self._running])
        positions_B1 = torch.tensor([[len(s.token_ids) - 1] for s in self._running])
        mask = cache.aim(slice(0, num_rows), positions_B1, None)
        logits_BV = self._model.last_logits(ids_B1, positions_B1, mask, cache)
        self._record(0)
        return logits_BV

    def _prefill(self, first_row: int) -> Tensor:
        """Open rows for waiting sequences and compute what no row holds yet; logits after each one's last token."""
        cache = self._rows()
        suffixes: list[list[int]] = []
        starts: list[int] = []
        for sequence in self._admit(first_row, suffixes):
            start = cache.open_row(len(self._running), sequence.token_ids)
            self._running.append(sequence)
            starts.append(start)
            suffixes.append(sequence.token_ids[start:])
        ids_BP, positions_BP, valid_BP = _align_ends(suffixes, starts)
        window = slice(first_row, len(self._running))
        logits_BV = torch.empty(0)
        width = max(1, MAX_PREFILL_TOKENS // len(suffixes))
        for begin in range(0, ids_BP.shape[1], width):
            columns = slice(begin, begin + width)
            positions_BQ = positions_BP[:, columns]
            mask = cache.aim(window, positions_BQ, valid_BP[:, columns])
            logits_BV = self._model.last_logits(ids_BP[:, columns], positions_BQ, mask, cache)
        self._record(first_row)
        return logits_BV

    def _admit(self, first_row: int, suffixes: list[list[int]]) -> Iterator[Sequence]:
        """Waiting sequences for one prefill. A twin of one of them waits for the next pass: it then costs one token."""
        seen: set[tuple[int, ...]] = set()
        passed_over: list[Sequence] = []
        while self._waiting and len(self._running) < self._num_rows:
            longest = max((len(suffix) for suffix in suffixes), default=0)
            if suffixes and (len(suffixes) + 1) * max(longest, 1) > MAX_PREFILL_TOKENS:
                break
            sequence = self._waiting.popleft()
            key = tuple(sequence.token_ids)
            if key in seen:
                passed_over.append(sequence)
                continue
            seen.add(key)
            yield sequence
        self._waiting.extendleft(reversed(passed_over))

    def _record(self, first_row: int) -> None:
        """The pass is over: the rows hold every token that was fed."""
        rows = self._rows().rows
        for row in range(first_row, len(self._running)):
            stored = rows[row].token_ids
            stored.extend(self._running[row].token_ids[len(stored) :])

    def _sample(self, first_row: int, logits_BV: Tensor) -> list[Sampled]:
        sequences = self._running[first_row:]
        uniforms = [s.draws.at(len(s.token_ids)) if s.params.temperature else 0.0 for s in sequences]
        tokens, logprobs = draw(logits_BV, [s.params for s in sequences], uniforms)
        sampled = []
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            sequence.token_ids.append(token)
            sequence.num_left -= 1
            sampled.append(Sampled(sequence.ticket, token, logprob, self._finish_of(sequence)))
        for offset in reversed(range(len(sampled))):
            if sampled[offset].finish is not None:
                self._close_row(first_row + offset)
        return sampled

    def _finish_of(self, sequence: Sequence) -> Finish | None:
        if sequence.token_ids[-1] in sequence.params.stop_token_ids:
            return Finish.STOP
        used_up = sequence.num_left <= 0 or len(sequence.token_ids) >= self._max_tokens
        return Finish.LENGTH if used_up else None

    def _close_row(self, row: int) -> None:
        """Keep the running rows contiguous: the last one moves into the gap; the closed one stays for sharing."""
        last = len(self._running) - 1
        self._rows().swap(row, last)
        self._running[row] = self._running[last]
        self._running.pop()


def _align_ends(suffixes: Iterable[list[int]], starts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Pad on the left, so that the last column holds every sequence's last token: ids, positions, validity [B, P]."""
    suffixes = list(suffixes)
    width = max(len(suffix) for suffix in suffixes)
    ids = [[0] * (width - len(suffix)) + suffix for suffix in suffixes]
    positions = [
        [0] * (width - len(suffix)) + list(range(start, start + len(suffix)))
        for suffix, start in zip(suffixes, starts, strict=True)
    ]
    valid = [[False] * (width - len(suffix)) + [True] * len(suffix) for suffix in suffixes]
    return torch.tensor(ids), torch.tensor(positions), torch.tensor(valid)
