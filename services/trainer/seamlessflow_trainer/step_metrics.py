"""What is measured of a step: the figures that StepTaken carries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .batches import TrainingBatch
from .learner import StepFigures


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's time went."""

    wait: float
    """For samples and for the device, since the step before."""
    train: float
    publish: float


def step_metrics(
    batch: TrainingBatch,
    figures: StepFigures,
    times: StepTimes,
    *,
    learning_rate: float,
    dropped_rewards: Sequence[tuple[str, float]],
) -> dict[str, float]:
    """StepTaken.metrics by name; docs/operations.md has the table of units.

    dropped_rewards: environment and reward of members whose groups taught nothing because all were equal. They count in the
    mean reward, which would otherwise stop growing just when whole groups succeed.
    """
    metrics = {
        **_reward_metrics(batch, dropped_rewards),
        "loss": figures.loss,
        "grad_norm": figures.grad_norm,
        "learning_rate": learning_rate,
        "staleness_mean": sum(age * count for age, count in batch.ages.items()) / max(1, batch.num_sampled),
        "staleness_max": float(max(batch.ages, default=0)),
        "trained_tokens": float(batch.num_trained),
        "masked_tokens": float(batch.num_masked),
        "completion_tokens": fmean(member.num_sampled for group in batch.groups for member in group.members),
        "num_groups": float(len(batch.groups)),
        "seconds_wait": times.wait,
        "seconds_train": times.train,
        "seconds_publish": times.publish,
    }
    if figures.num_computed:
        metrics |= {"importance_ratio": figures.importance_ratio, "truncated_fraction": figures.truncated_fraction}
    if figures.logprob_gap is not None:
        metrics["logprob_gap"] = figures.logprob_gap
    return metrics


def _reward_metrics(batch: TrainingBatch, dropped_rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    rewards = [(group.env, reward) for group in batch.groups for reward in group.rewards] + list(dropped_rewards)
    by_env: dict[str, list[float]] = {}
    for env, reward in rewards:
        by_env.setdefault(env, []).append(reward)
    return {"reward": fmean(r for _, r in rewards), **{f"reward/{env}": fmean(rs) for env, rs in by_env.items()}}
