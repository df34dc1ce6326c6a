"""Per-token correction: what a token's age and the engine's arithmetic do to its part in the gradient.

A token that is too old, or beyond the longest sequence, is masked with a reason; every other one is weighted by how much
more likely the trainer finds it than the engine did, up to a cap. Pure.

Dimensions: K sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from seamlessflow.ages import VersionSteps
from seamlessflow.contracts import MaskReason, Sample

MAX_LOG_RATIO = 20.0
"""Log ratios are cut here before exp, so that one absurd token cannot make a metric infinite. Far above any cap."""


def token_versions(sample: Sample) -> Iterator[int]:
    """The weights version of each sampled token, in the order of ``sample.logprobs``."""
    for weights_version, count in sample.versions:
        for _ in range(count):
            yield weights_version


def token_ages(sample: Sample, steps: VersionSteps, current_step: int) -> list[int]:
    """The age of each sampled token. Raises BadInput for an unknown version or a negative age."""
    ages: list[int] = []
    for weights_version, count in sample.versions:
        ages += [steps.age(weights_version, current_step)] * count
    return ages


def mask_reasons(
    positions_K: Sequence[int], ages_K: Sequence[int], *, max_staleness: int, max_sequence_tokens: int
) -> list[MaskReason | None]:
    """Why each sampled token takes no part in the loss; None: it does.

    positions_K: index of each token in its sample. A token that is both counts as too_long: age does not matter for it.
    """
    return [
        MaskReason.TOO_LONG if position >= max_sequence_tokens else MaskReason.STALE if age > max_staleness else None
        for position, age in zip(positions_K, ages_K, strict=True)
    ]


def importance_ratios(trainer_logprobs_K: Tensor, engine_logprobs_K: Tensor) -> Tensor:
    """exp(trainer - engine), [K] float32, without a gradient: how much likelier the token is now than when sampled."""
    log_ratios_K = trainer_logprobs_K.detach().float() - engine_logprobs_K
    return torch.exp(log_ratios_K.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def logprob_gap(trainer_logprobs_K: Tensor, engine_logprobs_K: Tensor, is_current_K: Tensor) -> tuple[float, int]:
    """Sum of |trainer - engine| over the tokens of the current version, and their number.

    Over those alone: for older tokens the difference is learning, not a mismatch of two implementations.
    """
    gaps_K = (trainer_logprobs_K.detach().float() - engine_logprobs_K).abs()
    return float(gaps_K[is_current_K].sum()), int(is_current_K.sum())
