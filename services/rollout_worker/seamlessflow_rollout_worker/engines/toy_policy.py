"""A language model of one table: the next token depends on the last one only. Pure Python, exact, seeded."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seamlessflow.errors import BadInput
from seamlessflow.weights.tensorfile import map_tensors
from seamlessflow_rollout_worker.engines.base import SamplingParams

Table = list[list[float]]
"""logits[last token][next token]."""
LOGITS = "logits"
"""Name of the one tensor that means something to engines without a neural network."""
_FLOATS = {"F32": np.float32, "F64": np.float64}


def read_logits(file: Path) -> NDArray[np.float64] | None:
    """The tensor ``logits`` of a safetensors file, None where it has none. Raises BadInput unless its numbers are finite
    and of 32 or 64 bits."""
    tensor = map_tensors(file).get(LOGITS)
    if tensor is None:
        return None
    if tensor.dtype not in _FLOATS:
        raise BadInput(f"logits: expected {' or '.join(_FLOATS)}, got {tensor.dtype}. Nothing was copied.")
    numbers = tensor.words.view(_FLOATS[tensor.dtype]).reshape(tensor.shape).astype(np.float64)
    if not np.isfinite(numbers).all():
        raise BadInput("logits: expected finite numbers. Nothing was copied.")
    return numbers


class ToyPolicy:
    """logits[last token][next token]; rows and columns are the vocabulary."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        stream = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self.vocab_size = vocab_size
        self._logits = [[stream.gauss(0.0, 1.0) for _ in range(vocab_size)] for _ in range(vocab_size)]

    def read_table(self, file: Path) -> Table | None:
        """The tensor ``logits`` of a safetensors file; None: it has none, and other tensors mean nothing to a table.

        Raises BadInput unless it is a square of finite numbers of this vocabulary's size.
        """
        given = read_logits(file)
        if given is None:
            return None
        if given.shape != (self.vocab_size, self.vocab_size):
            raise BadInput(f"logits: expected {self.vocab_size} x {self.vocab_size} numbers. Nothing was copied.")
        table: Table = given.tolist()
        return table

    def overwrite(self, table: Table) -> None:
        """Take over what ``read_table`` read."""
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
