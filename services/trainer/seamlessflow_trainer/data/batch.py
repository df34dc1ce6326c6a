"""A step's worth of groups, made ready: advantages, masks and ages per token, and the account of where tokens went.

Pure. Dimensions: N trained tokens of the step; ``Path.first`` counts in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import EpisodeTokens, Sample
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.algorithms.grpo import group_advantages
from seamlessflow_trainer.algorithms.off_policy_correction import Bools, masked, token_ages, token_versions

from .groups import TrainingGroup
from .packing import Path


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one optimiser step learns from."""

    groups: tuple[TrainingGroup, ...]
    paths: tuple[tuple[Path, ...], ...]
    """Per group; a path without trained tokens is among them and is skipped by the packing."""
    engine_logprobs_N: Tensor
    advantages_N: Tensor
    is_current_N: Tensor
    """bool; sampled by the very weights that are trained now."""
    episodes: tuple[tuple[EpisodeTokens, ...], ...]
    """Per group: where each episode's tokens went."""
    ages: Mapping[int, int]
    """How many sampled tokens, trained or masked, have each age."""

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
        return self.num_sampled - self.num_trained

    @property
    def num_sampled(self) -> int:
        """Sampled tokens, trained or masked."""
        return sum(self.ages.values())


def is_stale(group: TrainingGroup, steps: VersionSteps, current_step: int, *, max_staleness: int) -> bool:
    """Whether every token of the group is older than the bound."""
    return all(steps.age(version, current_step) > max_staleness for version in group.weights_versions)


def make_batch(
    groups: Sequence[TrainingGroup], steps: VersionSteps, current_step: int, weights_version: int, algorithm: AlgorithmSection
) -> TrainingBatch:
    """Judge every token of some groups as of ``current_step`` optimiser steps done. Raises BadInput on a negative age."""
    builder = _BatchBuilder(steps, current_step, weights_version, algorithm)
    paths, episodes = [], []
    for group in groups:
        advantages = group_advantages(group.rewards, normalize_std=algorithm.normalize_std)
        made = [builder.member(m.episode, m.samples, a) for m, a in zip(group.members, advantages, strict=True)]
        paths.append(tuple(path for member_paths, _ in made for path in member_paths))
        episodes.append(tuple(account for _, account in made))
    return TrainingBatch(
        groups=tuple(groups),
        paths=tuple(paths),
        engine_logprobs_N=_concatenated(builder.logprobs, np.float32),
        advantages_N=_concatenated(builder.advantages, np.float32),
        is_current_N=_concatenated(builder.is_current, np.bool_),
        episodes=tuple(episodes),
        ages=builder.ages,
    )


@dataclass(slots=True)
class _BatchBuilder:
    """Appends to all per-token arrays together, so that they always have one length. Whole samples at a time: a step may have
    millions of tokens."""

    steps: VersionSteps
    current_step: int
    weights_version: int
    algorithm: AlgorithmSection
    num_trained: int = 0
    logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    advantages: list[NDArray[np.float32]] = field(default_factory=list)
    is_current: list[Bools] = field(default_factory=list)
    ages: Counter[int] = field(default_factory=Counter)

    def member(self, episode: str, samples: Sequence[Sample], advantage: float) -> tuple[list[Path], EpisodeTokens]:
        paths, masked_counts, trained = [], Counter[str](), 0
        for sample in samples:
            path, counts = self._sample(sample, advantage)
            paths.append(path)
            trained += len(path.trained)
            masked_counts += counts
        return paths, EpisodeTokens(episode=episode, trained=trained, masked=dict(masked_counts))

    def _sample(self, sample: Sample, advantage: float) -> tuple[Path, Counter[str]]:
        positions = np.concatenate([np.arange(start, end) for start, end in sample.spans] or [np.arange(0)])
        ages, versions = token_ages(sample, self.steps, self.current_step), token_versions(sample)
        logprobs = np.frombuffer(sample.logprobs.to_bytes(), dtype="<f4")
        if not len(positions) == len(ages) == len(logprobs):
            raise ValueError(f"{len(positions)} sampled tokens have {len(logprobs)} logprobs and {len(ages)} versions")
        for version, count in sample.versions:
            self.ages[self.steps.age(version, self.current_step)] += count
        reasons = masked(
            positions,
            ages,
            max_staleness=self.algorithm.max_staleness,
            max_sequence_tokens=self.algorithm.max_sequence_tokens,
        )
        is_trained = ~np.logical_or.reduce(list(reasons.values()))
        first, trained = self.num_trained, positions[is_trained]
        self.num_trained += len(trained)
        self.logprobs.append(logprobs[is_trained])
        self.advantages.append(np.full(len(trained), advantage, dtype=np.float32))
        self.is_current.append(versions[is_trained] == self.weights_version)
        counts = Counter({reason.value: int(of.sum()) for reason, of in reasons.items()})
        return Path(list(sample.token_ids), trained.tolist(), first), +counts


def _concatenated(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype))


def joined_batch(parts: Sequence[TrainingBatch]) -> TrainingBatch:
    """The batch that all parts are together."""
    if len(parts) == 1:
        return parts[0]
    firsts, num_before = [], 0
    for part in parts:
        firsts.append(num_before)
        num_before += part.num_trained
    return TrainingBatch(
        groups=tuple(group for part in parts for group in part.groups),
        paths=tuple(
            tuple(replace(path, first=first + path.first) for path in paths)
            for first, part in zip(firsts, parts, strict=True)
            for paths in part.paths
        ),
        engine_logprobs_N=torch.cat([part.engine_logprobs_N for part in parts]),
        advantages_N=torch.cat([part.advantages_N for part in parts]),
        is_current_N=torch.cat([part.is_current_N for part in parts]),
        episodes=tuple(accounts for part in parts for accounts in part.episodes),
        ages=sum((Counter(part.ages) for part in parts), Counter[int]()),
    )
