"""A step's worth of groups, made ready: advantages, masks and ages per token, and the account of where tokens went.

Pure. Dimensions: N trained tokens of the step; ``Path.first`` counts in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seamlessflow.ages import VersionSteps
from seamlessflow.contracts import EpisodeTokens, Sample
from seamlessflow.run_config import AlgorithmSection

from .algorithms.grpo import group_advantages
from .correction import mask_reasons, token_ages, token_versions
from .groups import Group
from .packing import Path


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one optimiser step learns from."""

    groups: tuple[Group, ...]
    paths: tuple[tuple[Path, ...], ...]
    """Per group; a path without trained tokens is among them and is skipped by the packing."""
    engine_logprobs_N: Tensor
    advantages_N: Tensor
    is_current_N: Tensor
    """bool; sampled by the very weights that are trained now."""
    episodes: tuple[tuple[EpisodeTokens, ...], ...]
    """Per group: where each episode's tokens went."""
    ages: tuple[int, ...]
    """Of every sampled token, trained or masked."""

    @property
    def num_trained(self) -> int:
        return len(self.advantages_N)

    @property
    def teaching_paths(self) -> list[list[Path]]:
        """Per group, the paths whose advantage is not zero. The others count in N and have a gradient of exactly zero, so
        nobody needs to compute them: members of a group with equal rewards, above all. A step without any changes nothing,
        the optimiser's averages included.
        """
        return [[path for path in paths if path.trained and self.advantages_N[path.first] != 0.0] for paths in self.paths]

    @property
    def num_masked(self) -> int:
        return len(self.ages) - self.num_trained


def is_stale(group: Group, steps: VersionSteps, current_step: int, *, max_staleness: int) -> bool:
    """Whether every token of the group is older than the bound."""
    return all(steps.age(version, current_step) > max_staleness for version in group.weights_versions)


def make_batch(
    groups: Sequence[Group], steps: VersionSteps, current_step: int, weights_version: int, algorithm: AlgorithmSection
) -> TrainingBatch:
    """Judge every token of some groups as of ``current_step`` optimiser steps done. Raises BadInput on a negative age."""
    maker = _Maker(steps, current_step, weights_version, algorithm)
    paths, episodes = [], []
    for group in groups:
        advantages = group_advantages(group.rewards, normalize_std=algorithm.normalize_std)
        made = [maker.member(m.episode, m.samples, a) for m, a in zip(group.members, advantages, strict=True)]
        paths.append(tuple(path for member_paths, _ in made for path in member_paths))
        episodes.append(tuple(account for _, account in made))
    return TrainingBatch(
        groups=tuple(groups),
        paths=tuple(paths),
        engine_logprobs_N=torch.tensor(maker.logprobs, dtype=torch.float32),
        advantages_N=torch.tensor(maker.advantages, dtype=torch.float32),
        is_current_N=torch.tensor(maker.is_current, dtype=torch.bool),
        episodes=tuple(episodes),
        ages=tuple(maker.ages),
    )


@dataclass(slots=True)
class _Maker:
    """Appends to all per-token lists together, so that they always have one length."""

    steps: VersionSteps
    current_step: int
    weights_version: int
    algorithm: AlgorithmSection
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    is_current: list[bool] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)

    def member(self, episode: str, samples: Sequence[Sample], advantage: float) -> tuple[list[Path], EpisodeTokens]:
        paths, masked, trained = [], dict[str, int](), 0
        for sample in samples:
            path, reasons = self._sample(sample, advantage)
            paths.append(path)
            trained += len(path.trained)
            for reason in reasons:
                masked[reason] = masked.get(reason, 0) + 1
        return paths, EpisodeTokens(episode=episode, trained=trained, masked=masked)

    def _sample(self, sample: Sample, advantage: float) -> tuple[Path, list[str]]:
        positions = list(_sampled_positions(sample))
        ages = token_ages(sample, self.steps, self.current_step)
        self.ages += ages
        reasons = mask_reasons(
            positions,
            ages,
            max_staleness=self.algorithm.max_staleness,
            max_sequence_tokens=self.algorithm.max_sequence_tokens,
        )
        first, trained = len(self.logprobs), []
        for position, reason, logprob, version in zip(positions, reasons, sample.logprobs, token_versions(sample), strict=True):
            if reason is None:
                trained.append(position)
                self.logprobs.append(logprob)
                self.advantages.append(advantage)
                self.is_current.append(version == self.weights_version)
        return Path(list(sample.token_ids), trained, first), [reason.value for reason in reasons if reason is not None]


def _sampled_positions(sample: Sample) -> Iterator[int]:
    for start, end in sample.spans:
        yield from range(start, end)
