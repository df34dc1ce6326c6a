"""Draw one token for each row of logits, each row in its own way. Dimensions: B rows, V vocabulary.

Always true: the logprob is that of the distribution after temperature and before top-p, computed in float32.
Inverse-CDF draws instead of ``torch.multinomial``: one random number per row, not one per vocabulary entry, which
on a CPU is eight times faster at a vocabulary of 49,152 and lets each request bring its own randomness.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from .base import SamplingParams

NOT_FINITE = "The model returned logits that are not finite; its weights are broken."


def draw(logits_BV: Tensor, params_B: Sequence[SamplingParams], uniforms_B: Sequence[float]) -> tuple[list[int], list[float]]:
    """Token ids and logprobs, one per row; ``uniforms_B`` in [0, 1) decides the rows that are not greedy.

    Raises FloatingPointError on a row without a finite maximum: broken weights must stop the engine, not sample noise.
    """
    tokens_B, logprobs_B = pick(logits_BV, params_B, uniforms_B)
    if not bool(torch.isfinite(logprobs_B).all()):
        raise FloatingPointError(NOT_FINITE)
    return tokens_B.tolist(), logprobs_B.tolist()


def pick(logits_BV: Tensor, params_B: Sequence[SamplingParams], uniforms_B: Sequence[float]) -> tuple[Tensor, Tensor]:
    """As ``draw``, on the device of the logits, which nobody waits for: [B] ids and [B] logprobs.

    The logprob of a row without a finite maximum is not finite; which token stands there means nothing.
    """
    device = logits_BV.device
    temperatures = [p.temperature or 1.0 for p in params_B]
    logits_BV = logits_BV.float()
    if any(t != 1.0 for t in temperatures):
        logits_BV = logits_BV / _on(device, temperatures).unsqueeze(1)
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    tokens_B = logprobs_BV.argmax(dim=-1)
    sampled = [row for row, p in enumerate(params_B) if p.temperature > 0.0]
    if sampled:
        every_row = len(sampled) == len(params_B)
        rows = _on(device, sampled)
        probs_BV = (logprobs_BV if every_row else logprobs_BV[rows]).exp()
        probs_BV = _keep_top_p(probs_BV, [params_B[row].top_p for row in sampled])
        tokens_B[rows] = _invert_cdf(probs_BV, _on(device, [uniforms_B[row] for row in sampled]))
    return tokens_B, logprobs_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)


def _on(device: torch.device, values: Sequence[float] | Sequence[int]) -> Tensor:
    """Numbers on the device. From pinned memory: copying to a GPU from elsewhere waits for all it has still to do."""
    if device.type == "cpu":
        return torch.tensor(values)
    return torch.tensor(values, pin_memory=True).to(device, non_blocking=True)


def _keep_top_p(probs_BV: Tensor, top_p_B: Sequence[float]) -> Tensor:
    """Zero everything outside the smallest set of tokens whose probability reaches top_p; the best token stays."""
    cut = [row for row, top_p in enumerate(top_p_B) if top_p < 1.0]
    if not cut:
        return probs_BV
    nucleus = _on(probs_BV.device, cut)
    sorted_probs, order = probs_BV[nucleus].sort(dim=-1, descending=True)
    before = sorted_probs.cumsum(dim=-1) - sorted_probs
    kept = sorted_probs.masked_fill(before >= _on(probs_BV.device, [top_p_B[row] for row in cut]).unsqueeze(1), 0.0)
    kept[:, 0] = sorted_probs[:, 0]
    probs_BV[nucleus] = torch.zeros_like(sorted_probs).scatter_(1, order, kept)
    return probs_BV


def _invert_cdf(probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the uniform number; never one of probability zero."""
    cdf_BV = probs_BV.cumsum(dim=-1)
    targets_B1 = (uniforms_B * cdf_BV[:, -1]).unsqueeze(1)
    tokens_B = torch.searchsorted(cdf_BV, targets_B1, right=True).squeeze(1)
    # Rounding can put the target on the very end of the cdf, past the last token.
    return torch.where(tokens_B < probs_BV.shape[1], tokens_B, probs_BV.argmax(dim=-1))


# Where the randomness of sampling comes from: one uniform number per token.


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but ``seed`` and ``position`` (index of the token in its sequence).

    So a generation interrupted at any token and continued by another worker makes the draws it would have made.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


class Draws:
    """The draws of one request: from its seed, or from the engine's stream where it has none."""

    def __init__(self, seed: int | None, engine_stream: random.Random) -> None:
        self._seed = seed
        self._engine_stream = engine_stream

    def at(self, position: int) -> float:
        """The uniform number that decides the token at ``position``."""
        return self._engine_stream.random() if self._seed is None else uniform(self._seed, position)
