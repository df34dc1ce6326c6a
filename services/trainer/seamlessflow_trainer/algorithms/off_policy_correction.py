"""Per-token correction: what a token's age and the engine's arithmetic do to its part in the gradient.

A token that is too old, or beyond the longest sequence, is masked with a reason; every other one is weighted by how much
more likely the trainer finds it than the engine did, up to a cap. Pure.

Dimensions: K sampled tokens.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seamlessflow.contracts import MaskReason, Sample
from seamlessflow.weights.staleness import VersionSteps

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
MAX_LOG_RATIO = 20.0
"""Log ratios are cut here before exp, so that one absurd token cannot make a metric infinite. Far above any cap."""


def token_versions(sample: Sample) -> Ints:
    """[K]: the weights version of each sampled token, in the order of ``sample.logprobs``."""
    return np.repeat(*_columns([version for version, _ in sample.versions], [count for _, count in sample.versions]))


def token_ages(sample: Sample, steps: VersionSteps, current_step: int) -> Ints:
    """[K]: the age of each sampled token. Raises BadInput for an unknown version or a negative age."""
    ages = [steps.age(version, current_step) for version, _ in sample.versions]
    return np.repeat(*_columns(ages, [count for _, count in sample.versions]))


def _columns(*columns: list[int]) -> list[Ints]:
    return [np.array(column, dtype=np.int64) for column in columns]


def masked(positions_K: Ints, ages_K: Ints, *, max_staleness: int, max_sequence_tokens: int) -> dict[MaskReason, Bools]:
    """Which sampled tokens take no part in the loss, and why; all others do.

    positions_K: index of each token in its sample. A token that is both counts as too_long: age does not matter for it.
    """
    too_long_K = positions_K >= max_sequence_tokens
    return {MaskReason.TOO_LONG: too_long_K, MaskReason.STALE: (ages_K > max_staleness) & ~too_long_K}


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
