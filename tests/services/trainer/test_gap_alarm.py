"""Whose tokens the alarm names: gaps by episode, who sampled them by the journal, and what a step says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import (
    Float32s,
    GenerationClaimed,
    Int32s,
    Role,
    Sample,
    SamplesReady,
    SegmentSampled,
    StepTaken,
    TrainerStarted,
    WeightsLoaded,
)
from seamlessflow.logprob_gap import GAP, GAP_ALARM, GAP_LIMIT
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.data.batch import joined_batch, make_batch
from seamlessflow_trainer.data.groups import TrainingGroup
from seamlessflow_trainer.learner.model_loading import load_learner
from seamlessflow_trainer.steps.logprob_gap_alarm import GapSum, episode_gaps, mean_gaps, tokens_by_worker
from tests.services.trainer.trainer_world import RUN, World, by_index, run_document, samples_ready

MakeWorld = Callable[..., Awaitable[World]]


def member(group: str, index: int, *samples: Sample) -> SamplesReady:
    return samples_ready(group, index, list(samples), float(index))


def sampled(num_tokens: int, version: int = 1) -> Sample:
    return Sample(
        token_ids=Int32s([1] * (num_tokens + 1)),
        spans=((1, num_tokens + 1),),
        logprobs=Float32s([-1.0] * num_tokens),
        versions=((version, num_tokens),),
    )


def batch_of(*groups: TrainingGroup):
    return make_batch(groups, VersionSteps([(0, 0), (1, 1)]), 1, 1, AlgorithmSection(steps=1))


def segment(nonce: str, count: int, *, version: int = 1, worker: str | None = None, start: int = 0) -> SegmentSampled:
    ids, logprobs = Int32s([1] * count), Float32s([-1.0] * count)
    return SegmentSampled(
        run=RUN, episode="e-0", generation="g", shard=0, nonce=nonce, start=start, token_ids=ids, logprobs=logprobs,
        weights_version=version, worker=worker,
    )  # fmt: skip


def test_gaps_are_summed_by_episode_over_tokens_that_the_present_weights_sampled():
    """Two samples of an episode count together; older tokens and those that were not computed do not count."""
    batch = batch_of(
        TrainingGroup("a", (member("a", 0, sampled(2), sampled(1)), member("a", 1, sampled(2, version=0)))),
        TrainingGroup("b", (member("b", 0, sampled(1)), member("b", 1, sampled(2)))),
    )
    gaps_N = torch.tensor([1.0, 2.0, 3.0, 9.0, 9.0, 4.0, float("nan"), 5.0])

    assert episode_gaps(batch, gaps_N) == {
        "a-0-0": GapSum(6.0, 3),
        "b-0-0": GapSum(4.0, 1),
        "b-1-0": GapSum(5.0, 1),
    }


def test_parts_of_a_step_are_counted_as_the_whole_batch_would_be():
    """The gaps of parts stand one after the other, as the tokens of the joined batch do."""
    parts = [
        batch_of(TrainingGroup("a", (member("a", 0, sampled(2)), member("a", 1, sampled(1))))),
        batch_of(TrainingGroup("b", (member("b", 0, sampled(1)), member("b", 1, sampled(2))))),
    ]
    gaps = [torch.tensor([1.0, 1.0, 2.0]), torch.tensor([3.0, 4.0, 4.0])]

    assert {name: gap.mean for name, gap in episode_gaps(joined_batch(parts), torch.cat(gaps)).items()} == {
        "a-0-0": 1.0, "a-1-0": 2.0, "b-0-0": 3.0, "b-1-0": 4.0,
    }  # fmt: skip


def test_who_sampled_is_read_from_claims_and_from_segments_that_are_claims():
    """Only tokens of the version count, each for the worker whose claim they were said under."""
    claim = GenerationClaimed(run=RUN, episode="e-0", generation="g", shard=0, worker="w1", nonce="n1", start=0)
    events = [
        claim,
        segment("n1", 3, version=0),
        segment("n1", 2, start=3),
        segment("n2", 4, worker="w2", start=5),
        segment("n2", 1, start=9),
        segment("unknown", 8, start=10),
    ]

    assert tokens_by_worker(events, 1) == {"w1": 2, "w2": 5}


def test_who_only_ended_a_generation_is_asked_for_no_gap():
    """All tokens are of an equal version before; the last segment, under this one, has none. A share of nothing is no share."""
    events = [segment("n1", 3, version=0, worker="w1"), segment("n1", 0, start=3)]

    assert tokens_by_worker(events, 1) == {}
    assert mean_gaps({"e-0": GapSum(1.0, 3)}, {"e-0": tokens_by_worker(events, 1)}) == {}


def test_an_episode_of_two_nodes_counts_for_each_by_its_share():
    """The one whose other episodes are right is far below the one whose others are wrong."""
    gaps = {"good": GapSum(0.0, 10), "bad": GapSum(10.0, 10), "shared": GapSum(5.0, 10)}
    shares = {"good": {"n1": 5}, "bad": {"n2": 5}, "shared": {"n1": 3, "n2": 1}}

    found = mean_gaps(gaps, shares)

    assert found["n1"] == pytest.approx(3.75 / 17.5) and found["n2"] == pytest.approx(11.25 / 12.5)


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.floats(0, 9), st.integers(1, 9)), min_size=1), st.data())
def test_nothing_is_lost_or_counted_twice_when_gaps_go_to_nodes(sums, data):
    """Every mean lies between the smallest and the largest mean of the episodes, and a single node has the mean of all."""
    gaps = {episode: GapSum(total, count) for episode, (total, count) in sums.items()}
    shares = {e: data.draw(st.dictionaries(st.sampled_from("xyz"), st.integers(1, 9), max_size=3)) for e in gaps}
    known = [gaps[e].mean for e in gaps if shares[e]]

    assert all(min(known) - 1e-9 <= mean <= max(known) + 1e-9 for mean in mean_gaps(gaps, shares).values())
    whole = mean_gaps(gaps, {episode: {"x": 1} for episode in gaps})
    assert whole["x"] == pytest.approx(sum(g.total for g in gaps.values()) / sum(g.num_tokens for g in gaps.values()))


def test_a_learner_tells_the_gap_of_every_token_it_computed_part_by_part(tiny_llama: Path):
    """In the order of the joined batch; their mean over current tokens is the step's gap, and others are NaN."""
    learner = load_learner(tiny_llama, parse_run_config(run_document(tiny_llama)), torch.device("cpu"))
    taught = TrainingGroup("a", (member("a", 0, sampled(2), sampled(1, version=0)), member("a", 1, sampled(2))))
    equal = TrainingGroup("b", tuple(samples_ready("b", index, [sampled(3)], 1.0) for index in (0, 1)))
    parts = [batch_of(taught), batch_of(equal), batch_of(taught)]

    figures = learner.train_parts(parts, learning_rate=0.0)

    gaps_N, whole = torch.cat(figures.gaps), joined_batch(parts)
    assert gaps_N.isnan().tolist() == [False] * 5 + [True] * 6 + [False] * 5
    assert gaps_N[whole.is_current_N & ~gaps_N.isnan()].mean().item() == pytest.approx(figures.logprob_gap)
    assert torch.equal(gaps_N[:5], gaps_N[11:])


async def answered_wrongly(world: World, off: float) -> None:
    """Two groups; what the second one's engine reports is off by so much. Each has a node of its own."""
    policy = await world.policy()
    for node, wrong in (("n-good", 0.0), ("n-bad", off)):
        worker, group = f"{node}-1-x-y", node[2:]
        loaded = WeightsLoaded(
            run=RUN, weights_version=policy.version, worker=worker, fetch_seconds=0, pause_seconds=0, num_frozen=0, node=node
        )
        await world.journal.publish(loaded)
        rewards = by_index()
        for index in (0, 1):
            sample = policy.sample((3, 4, 5), 4)
            sample = sample.model_copy(update={"logprobs": Float32s([each - wrong for each in sample.logprobs])})
            said = samples_ready(group, index, [sample], rewards([]))
            claiming = segment("n", 4, version=policy.version, worker=worker)
            named = {"episode": said.episode, "generation": said.episode}
            await world.journal.append(claiming.model_copy(update=named), 0)
            await world.journal.publish(said)


async def test_a_step_beyond_the_limit_says_so_and_whose_tokens_they_were(make_world: MakeWorld):
    """By node: the one that is off by half a nat, and the one that is not."""
    world = await make_world(steps=1, logprob_gap_limit=0.1, logprob_gap_steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered_wrongly(world, 0.5)
        metrics = (await world.hears(StepTaken)).metrics

    assert metrics[GAP] == pytest.approx(0.25, abs=1e-4)
    assert (metrics[GAP_LIMIT], metrics[GAP_ALARM]) == (0.1, 1.0)
    assert metrics["logprob_gap/n-bad"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["logprob_gap/n-good"] < 1e-4


async def test_a_step_within_the_limit_asks_nobody(make_world: MakeWorld):
    """It says the limit, and that it is no alarm; by default the limit is the served precision's."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered_wrongly(world, 0.0)
        metrics = (await world.hears(StepTaken)).metrics

    assert (metrics[GAP_LIMIT], metrics[GAP_ALARM]) == (0.05, 0.0)
    assert not [name for name in metrics if name.startswith("logprob_gap/")]


def test_a_run_file_may_set_limit_and_steps_and_a_document_without_them_does_not_name_them():
    """Services of an older version read that document, too."""
    plain = AlgorithmSection(steps=1)

    assert plain.logprob_gap_limit is None and plain.logprob_gap_steps is None
    assert "logprob_gap_limit" not in plain.model_dump(exclude_none=True)
    with pytest.raises(ValueError, match="greater than 0"):
        AlgorithmSection(steps=1, logprob_gap_limit=0)
