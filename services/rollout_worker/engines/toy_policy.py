"""A language model of one table: the next token depends on the last one only. Pure Python, exact, seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from seamlessflow.errors import BadInput
from services.rollout_worker.engines.base import SamplingParams


class ToyPolicy:
    """logits[last token][next token]; rows and columns are the vocabulary."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        stream = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self.vocab_size = vocab_size
        self._logits = [[stream.gauss(0.0, 1.0) for _ in range(vocab_size)] for _ in range(vocab_size)]

    def overwrite(self, tensors: Mapping[str, Any]) -> None:
        """Take over ``tensors["logits"]`` where there is one; other tensors mean nothing to a table.

        Raises BadInput unless it is a square of finite numbers of this vocabulary's size.
        """
        if "logits" not in tensors:
            return
        given = tensors["logits"]
        table = [[float(x) for x in row] for row in (given.tolist() if hasattr(given, "tolist") else given)]
        if len(table) != self.vocab_size or any(len(row) != self.vocab_size for row in table):
            raise BadInput(f"logits: expected {self.vocab_size} x {self.vocab_size} numbers. Nothing was copied.")
        if not all(math.isfinite(x) for row in table for x in row):
            raise BadInput("logits: expected finite numbers. Nothing was copied.")
        self._logits = table

    def logprobs_after(self, last_token: int, temperature: float) -> list[float]:
        """The distribution of the next token after temperature; 0.0 counts as 1."""
        scaled = [x / (temperature or 1.0) for x in self._logits[last_token]]
        top = max(scaled)
        log_total = top + math.log(sum(math.exp(x - top) for x in scaled))
        return [x - log_total for x in scaled]

    def draw(self, last_token: int, params: SamplingParams, uniform: float) -> int:
        """The token that ``uniform`` in [0, 1) picks; the most likely one at temperature 0."""
        logprobs = self.logprobs_after(last_token, params.temperature)
        by_rank = sorted(range(self.vocab_size), key=lambda token: -logprobs[token])
        if params.temperature == 0.0:
            return by_rank[0]
        nucleus: list[int] = []
        mass = 0.0
        for token in by_rank:
            if nucleus and mass >= params.top_p:
                break
            nucleus.append(token)
            mass += math.exp(logprobs[token])
        target, reached = uniform * mass, 0.0
        for token in nucleus:
            reached += math.exp(logprobs[token])
            if reached > target:
                return token
        return nucleus[-1]
