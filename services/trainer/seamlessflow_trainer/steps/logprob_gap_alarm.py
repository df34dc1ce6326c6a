"""The alarm on the logprob gap: checks the gap of every step and, beyond the limit, computes the gap of each node.

    step's gaps ─▶ GapWatch (seamlessflow.logprob_gap) ─▶ metrics ─▶ StepTaken
                       └ beyond ─▶ gaps by episode ─▶ journal: nodes that sampled those ─▶ gap by node ─▶ metrics, log

It only reports: what to do about an engine with a large gap is in docs/operations.md. The count of steps in a row begins anew
with each incarnation.

Samples do not name the worker that sampled a token; the journal does, as every claim of a generation names its worker. So the
journal is read only beyond the limit. An episode that several nodes sampled counts for each by its share of tokens.
``episode_gaps``, ``tokens_by_worker`` and ``mean_gaps`` are pure. Dimensions: N trained tokens of the step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import Event, SegmentSampled, WeightsLoaded, claim_of
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.logprob_gap import GAP_OF_NODE, GAP_STEPS, GapWatch, gap_limit
from seamlessflow.runtime import Journal
from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.learner.base import StepFigures

log = structlog.get_logger()

MOST_EPISODES = 64
"""Episodes of one step that are looked up in the journal: those with the most tokens. Enough to identify a faulty node."""

LOOKUP_SECONDS = 10.0
"""Longest time for these lookups: StepTaken waits for them."""


@dataclass(frozen=True, slots=True)
class GapSum:
    """The sum of the gaps of some tokens, and their number; fractions of tokens where several nodes share an episode."""

    total: float
    num_tokens: float

    @property
    def mean(self) -> float:
        """The mean gap of the tokens."""
        return self.total / self.num_tokens


def episode_gaps(batch: TrainingBatch, gaps_N: Tensor) -> dict[str, GapSum]:
    """By episode, over its computed tokens of the current version. Episodes without such tokens are left out.

    gaps_N: |trainer - engine| of each trained token, NaN where it was not computed.
    """
    counted_N = batch.is_current_N & ~gaps_N.isnan()
    found = {}
    for group, paths in zip(batch.groups, batch.paths, strict=True):
        rest = iter(paths)
        for member in group.members:
            mine = [slice(path.first, path.first + len(path.trained)) for _ in member.samples for path in [next(rest)]]
            counted = [gaps_N[part][counted_N[part]] for part in mine]  # no Python loop per token: steps have millions
            if num_tokens := sum(map(len, counted)):
                found[member.episode] = GapSum(sum(float(each.double().sum()) for each in counted), num_tokens)
    return found


def tokens_by_worker(events: Iterable[Event], weights_version: int) -> Counter[str]:
    """Number of tokens sampled with a version, by worker.

    events: of one episode's generations, in journal order. Workers without tokens are left out: a segment that only ends a
    generation has none.
    """
    workers: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for event in events:
        if (claim := claim_of(event)) is not None:
            workers[event.nonce] = claim.worker  # type: ignore[attr-defined] # every claiming event has one
        if isinstance(event, SegmentSampled) and event.weights_version == weights_version and event.nonce in workers:
            counts[workers[event.nonce]] += len(event.token_ids)
    return +counts


def mean_gaps(by_episode: Mapping[str, GapSum], shares: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Mean gap by sampler. shares: by episode, number of tokens of each sampler; an episode without shares is left out."""
    sums: dict[str, GapSum] = {}
    for episode, gap in by_episode.items():
        total = sum(shares.get(episode, {}).values())
        for name, count in shares.get(episode, {}).items():
            before, part = sums.get(name, GapSum(0.0, 0.0)), count / total
            sums[name] = GapSum(before.total + part * gap.total, before.num_tokens + part * gap.num_tokens)
    return {name: each.mean for name, each in sums.items()}


def gap_watch(config: RunConfig, dtype: str) -> GapWatch:
    """A watch with the run file's limits, or with those that rounding in the served precision explains."""
    algorithm = config.algorithm
    return GapWatch(algorithm.logprob_gap_limit or gap_limit(dtype), algorithm.logprob_gap_steps or GAP_STEPS)


class GapAlarm:
    """The alarm of one incarnation. ``dtype``: the served precision, as config.json names it."""

    def __init__(self, journal: Journal, run: str, config: RunConfig, dtype: str) -> None:
        self._journal, self._run = journal, run
        self._engine, self._watch = config.model.engine, gap_watch(config, dtype)

    async def judge(self, batch: TrainingBatch, figures: StepFigures, *, step: int, weights_version: int) -> dict[str, float]:
        """Further metrics of StepTaken about the step's gap; empty where no gap was measured.

        weights_version: the version before the step. Where the journal is unavailable the nodes are missing; the step goes on.
        """
        gap = figures.logprob_gap
        if gap is None:
            return {}
        self._watch = self._watch.after(gap)
        metrics = self._watch.metrics()
        if not self._watch.is_beyond:
            return metrics
        nodes = await self._by_node(batch, figures, weights_version)
        log_gap = log.error if self._watch.num_alarms else log.warning
        log_gap(
            "logprob_gap.alarm" if self._watch.num_alarms else "logprob_gap.beyond",
            run=self._run,
            step=step,
            gap=gap,
            limit=self._watch.limit,
            steps_in_a_row=self._watch.num_beyond,
            engine=self._engine,
            weights_version=weights_version,
            by_node=nodes,
        )
        return metrics | {f"{GAP_OF_NODE}{node}": mean for node, mean in nodes.items()}

    async def _by_node(self, batch: TrainingBatch, figures: StepFigures, weights_version: int) -> dict[str, float]:
        gaps = episode_gaps(batch, torch.cat(figures.gaps)) if figures.gaps else {}
        largest = dict(sorted(gaps.items(), key=lambda each: -each[1].num_tokens)[:MOST_EPISODES])
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                nodes = await self._nodes(weights_version)
                shares = {episode: await self._shares(episode, weights_version, nodes) for episode in largest}
        except (SeamlessFlowError, TimeoutError) as wrong:
            log.warning("logprob_gap.nobody_named", run=self._run, reason=str(wrong) or f"not read in {LOOKUP_SECONDS:g} s")
            return {}
        return mean_gaps(largest, shares)

    async def _nodes(self, weights_version: int) -> dict[str, str]:
        """Node by worker, of the workers that loaded the version."""
        events = await self._journal.all_on(WeightsLoaded, self._run, weights_version=weights_version)
        return {each.worker: each.node for each in events if isinstance(each, WeightsLoaded) and each.node}

    async def _shares(self, episode: str, weights_version: int, nodes: Mapping[str, str]) -> Counter[str]:
        """Number of the episode's tokens by node, or by worker where its node is not known."""
        events = await self._journal.all_on(SegmentSampled, self._run, episode=episode)
        shares: Counter[str] = Counter()
        for worker, count in tokens_by_worker(events, weights_version).items():
            shares[nodes.get(worker, worker)] += count
        return shares
