"""Samples in few words. Not a test."""

from __future__ import annotations

from collections.abc import Sequence

from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import EpisodeOrigin, EpisodeStatus, Float32s, Int32s, Sample, SamplesReady


def a_sample(
    token_ids: Sequence[int],
    spans: Sequence[tuple[int, int]],
    *,
    versions: Sequence[tuple[int, int]] | None = None,
    logprob: float = -1.0,
) -> Sample:
    """``spans`` of ``token_ids`` were sampled, by version 0 unless said otherwise, each token at the same logprob."""
    count = sum(end - start for start, end in spans)
    return Sample(
        token_ids=Int32s(token_ids),
        spans=tuple(spans),
        logprobs=Float32s([logprob] * count),
        versions=tuple(versions if versions is not None else [(0, count)] if count else []),
    )


def samples_ready(
    group: str = "g",
    index: int = 0,
    *,
    attempt: int = 0,
    reward: float | None = 1.0,
    status: EpisodeStatus = EpisodeStatus.COMPLETED,
    samples: Sequence[Sample] | None = None,
    env: str = "sums",
    run: str = "r",
) -> SamplesReady:
    """One attempt of one member; three prompt tokens and two sampled ones unless said otherwise."""
    completed = status is EpisodeStatus.COMPLETED
    made = tuple(samples if samples is not None else [a_sample([5, 6, 7, 8 + index, 9], [(3, 5)])]) if completed else ()
    return SamplesReady(
        run=run,
        episode=f"{group}-{index}-{attempt}",
        origin=EpisodeOrigin(group=group, task=group, env=env, index=index, attempt=attempt),
        status=status,
        reward=reward if completed else None,
        samples=made,
        num_sampled=sum(sample.num_sampled for sample in made),
    )


def an_algorithm(**changed: object) -> AlgorithmSection:
    return AlgorithmSection.model_validate({"steps": 4, "groups_per_step": 2, "group_size": 2, **changed})
