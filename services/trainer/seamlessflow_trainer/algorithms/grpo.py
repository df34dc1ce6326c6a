"""GRPO: a rollout is as good as it is better than its siblings, and every token of it gets that credit.

Token-level policy gradient with a truncated importance weight and no clipping range:

    loss = - 1/N  sum over trained tokens t of  w_t * A_t * logp_t,      w_t = min(exp(logp_t - engine_logp_t), cap)

where w carries no gradient. N is the number of trained tokens of the whole step, so that cutting the step into
micro-batches in another way changes nothing. Pure.

Dimensions: G members of a group, K tokens of a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .off_policy_correction import importance_ratios


def group_advantages(rewards_G: Sequence[float], *, normalize_std: bool = True, min_std: float = 1e-6) -> list[float]:
    """How much better each rollout did than its siblings: (r - mean) / max(std, min_std).

    rewards_G: one per rollout of the same task, G >= 2. normalize_std False: only r - mean (Dr. GRPO, arXiv:2503.20783).
    Returns G values that sum to 0; all zeros when every reward is equal: such a group teaches nothing.
    Raises ValueError on a non-finite reward: a broken grader should stop the run, not bend the policy.
    Source: DeepSeekMath, arXiv:2402.03300, outcome supervision. Std divides by G.
    """
    if len(rewards_G) < 2:
        raise ValueError(f"a group needs at least 2 rewards to compare, got {len(rewards_G)}")
    if not all(math.isfinite(reward) for reward in rewards_G):
        raise ValueError(f"expected finite rewards, got {list(rewards_G)}; look at the verifier of this group's task")
    if min(rewards_G) == max(rewards_G):
        return [0.0] * len(rewards_G)  # exactly: a mean that is off by a rounding must not become an advantage
    mean = math.fsum(rewards_G) / len(rewards_G)
    centred = [reward - mean for reward in rewards_G]
    if not normalize_std:
        return centred
    std = math.sqrt(math.fsum(c * c for c in centred) / len(centred))
    return [c / max(std, min_std) for c in centred]


def policy_loss(
    trainer_logprobs_K: Tensor, engine_logprobs_K: Tensor, advantages_K: Tensor, *, importance_cap: float, num_step_tokens: int
) -> Tensor:
    """This micro-batch's part of the step's loss (a scalar); the parts of a step add up to the loss above.

    trainer_logprobs_K: with gradient. All tokens given are trained; masked ones are left out by the caller.
    num_step_tokens: N, the trained tokens of the whole step, >= 1.
    """
    weights_K = torch.clamp(importance_ratios(trainer_logprobs_K, engine_logprobs_K), max=importance_cap)
    return -(weights_K * advantages_K * trainer_logprobs_K).sum() / num_step_tokens
