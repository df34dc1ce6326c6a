"""The pure parts of the timed run: scales, the law that tokens are drawn from, prefixes, cells, and what is counted as lost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from loadtest.fleet.cost import cost_of
from loadtest.fleet.timed_cache import BLOCK_TOKENS, PrefixCache
from loadtest.fleet.timed_cell import Cell, coarse
from loadtest.fleet.timed_clock import LENGTH_BITS, Scale, length_in, seed_with_length
from loadtest.fleet.timed_figures import misplaced
from loadtest.fleet.timed_law import Law
from loadtest.fleet.timed_work import Done, sampled_in, work_seconds
from loadtest.fleet.workloads import AGENTIC, REASONING, Workload, work_of
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import (
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    Float32s,
    GenerationClaimed,
    GenerationFinish,
    GenerationRequested,
    GroupAdmitted,
    GroupDropped,
    Int32s,
    RunEnded,
    Sample,
    SamplesReady,
    Sampling,
    SegmentSampled,
    StepTaken,
)
from seamlessflow.contracts.training import DropReason
from seamlessflow.errors import BadInput

RUN = "r"
WORDS = [5, 9, 11, 40]


@given(st.integers(0, 1 << 60), st.integers(1, (1 << LENGTH_BITS) - 1))
def test_a_seed_tells_its_length_and_stays_exact_in_json(identity: int, tokens: int) -> None:
    """At most 53 bits."""
    seed = seed_with_length(identity, tokens)
    assert length_in(seed) == tokens
    assert 0 <= seed < 1 << 53


@pytest.mark.parametrize("tokens", [0, -1, 1 << LENGTH_BITS])
def test_a_length_that_no_seed_can_tell_is_refused(tokens: int) -> None:
    """Rather than be another one."""
    with pytest.raises(ValueError, match="expected"):
        seed_with_length(1, tokens)


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_scaled_tokens_are_never_fewer(tokens: int, token_scale: int) -> None:
    """Rounded up, by less than one token of the data plane."""
    scale = Scale(3.0, token_scale)
    back = scale.modelled_tokens(scale.data_tokens(tokens))
    assert tokens <= back < tokens + token_scale
    assert scale.modelled_seconds(scale.real_seconds(7.0)) == pytest.approx(7.0)


@given(st.integers(0, 1 << 53), st.integers(0, 1000), st.integers(2, 40), st.data())
def test_a_draw_depends_on_seed_and_position_alone(seed: int, first: int, count: int, data: st.DataObject) -> None:
    """So a generation continued behind any of its tokens draws what it would have drawn."""
    law = Law(WORDS)
    law.overwrite(np.array([0.0, 1.0, -1.0, 0.5]))
    ids, logprobs = law.draw(seed, first, count, temperature=0.7, top_p=0.9)
    cut = data.draw(st.integers(1, count - 1))
    rest = law.draw(seed, first + cut, count - cut, temperature=0.7, top_p=0.9)

    assert set(ids) <= set(WORDS)
    assert (ids[cut:], logprobs[cut:]) == rest


def test_draws_follow_the_distribution() -> None:
    """Shares of 20,000 draws are the probabilities, within three standard errors."""
    law = Law(WORDS)
    law.overwrite(np.array([0.0, 1.0, -1.0, 0.5]))
    ids, _ = law.draw(1, 0, 20_000, temperature=1.0, top_p=1.0)
    shares = np.array([ids.count(word) for word in WORDS]) / len(ids)
    expected = np.exp(law.logprobs(1.0))
    assert np.abs(shares - expected).max() < 3 * np.sqrt(0.25 / len(ids))


def test_weights_that_do_not_fit_are_refused_before_anything_changes(tmp_path: Path) -> None:
    """Other names mean nothing to it; a wrong shape, a wrong dtype and what is no number are refused."""
    law, file = Law(WORDS), tmp_path / "model.safetensors"
    save_file({"steps": np.ones(1)}, file)
    assert law.read(file) is None
    infinite = np.array([1.0, np.inf, 0.0, 0.0])
    for wrong in (np.ones(1), np.ones(len(WORDS), np.float16), infinite):
        save_file({"logits": wrong}, file)
        with pytest.raises(BadInput, match="Nothing was copied"):
            law.read(file)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=80), st.lists(st.integers(0, 3), min_size=1, max_size=80))
def test_a_prefix_is_found_as_far_as_it_is_the_same(first: list[int], second: list[int]) -> None:
    """In whole blocks, never the whole of a prompt, and never more than is really common."""
    cache = PrefixCache(10_000)
    cache.put(first)
    common = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    known = cache.num_known(second)
    assert known == min(common // BLOCK_TOKENS * BLOCK_TOKENS, len(second) - 1)


def test_a_cache_forgets_what_was_not_used_longest() -> None:
    """Of three sequences that do not fit together, the one asked for in between stays."""
    cache = PrefixCache(2 * 4 * BLOCK_TOKENS)
    first, second, third = ([n] * 4 * BLOCK_TOKENS for n in (1, 2, 3))
    cache.put(first)
    cache.put(second)
    assert cache.num_known([*first, 0]) == len(first)
    cache.put(third)
    assert cache.num_known([*first, 0]) == len(first)
    assert cache.num_known([*second, 0]) == 0


@pytest.mark.parametrize("workload", [REASONING, AGENTIC], ids=lambda w: w.name)
@pytest.mark.parametrize("episodes", [2, 8, 16])
def test_fewer_sequences_that_stand_for_several_take_the_same_time(workload: Workload, episodes: int) -> None:
    """Rolling out and training a step's work, at full batches, is as long as before."""
    fine = cost_of()
    whole, part = work_of(workload, fine), work_of(workload, coarse(fine, episodes))
    assert part.rollout_seconds == pytest.approx(episodes * whole.rollout_seconds, rel=0.02)
    assert part.train_seconds == pytest.approx(episodes * whole.train_seconds)


@pytest.mark.parametrize("agentic", [False, True])
@pytest.mark.parametrize("shifts", [False, True])
def test_a_cell_is_a_run_that_can_be_requested(agentic: bool, shifts: bool) -> None:
    """Its name, its document, and its way through JSON."""
    cell = Cell("auto", "auto", nodes=64, train_nodes=16, agentic=agentic, shifts=shifts)
    config = parse_run_config(cell.document("folder"))
    assert Cell.from_json(cell.to_json()) == cell
    assert config.fleet.slots == 16, "of agents a worker takes fewer by itself"
    assert config.algorithm.groups_per_step == 64
    assert len(cell.run) <= 48
    assert 0.0 == cell.progress(0) < cell.progress(100) <= cell.progress(10**9) == 1.0


def history(*segments: tuple[int, int, bool], length: int = 5, num_in_samples: int = 5) -> list[Event]:
    """One completed episode of one generation, given as (start, tokens, is it the last) of its segments."""
    origin = EpisodeOrigin(group="g", task="t", env="e", index=0, attempt=0)
    sampling = Sampling(max_tokens=100)
    num_sampled = sum(count for _, count, _ in segments)
    sample = Sample(
        token_ids=Int32s([1] * (num_in_samples + 1)),
        spans=((1, num_in_samples + 1),),
        logprobs=Float32s([0.0] * num_in_samples),
        versions=((0, num_in_samples),),
    )
    return [
        GroupAdmitted(run=RUN, group="g", task="t", env="e", num_episodes=1, step=0),
        EpisodeOpened(run=RUN, episode="x", origin=origin, shard=0, bucket=0, env="e", prompt="", sampling=sampling, seed=1),
        GenerationRequested(
            run=RUN,
            episode="x",
            generation="c",
            tag="rollout",
            bucket=0,
            shard=0,
            suffix=Int32s([1]),
            sampling=sampling,
            stop_token_ids=(2,),
            seed=seed_with_length(7, length),
        ),
        *(
            SegmentSampled(
                run=RUN,
                episode="x",
                generation="c",
                shard=0,
                nonce="n",
                start=start,
                token_ids=Int32s([3] * count),
                logprobs=Float32s([0.0] * count),
                weights_version=0,
                finish=GenerationFinish.STOP if is_last else None,
            )
            for start, count, is_last in segments
        ),
        EpisodeEnded(run=RUN, episode="x", shard=0, origin=origin, status=EpisodeStatus.COMPLETED, reward=1.0),
        SamplesReady(
            run=RUN,
            episode="x",
            origin=origin,
            status=EpisodeStatus.COMPLETED,
            reward=1.0,
            samples=(sample,),
            num_sampled=num_sampled,
        ),
        GroupDropped(run=RUN, group="g", reason=DropReason.RUN_ENDED),
        RunEnded(run=RUN, reason="completed", steps=0),
    ]


def test_tokens_that_are_there_exactly_once_are_not_misplaced() -> None:
    """However many segments there are."""
    assert not misplaced(history((0, 2, False), (2, 3, True)))


@pytest.mark.parametrize(
    ("segments", "changes", "wrong"),
    [
        ([(0, 2, False), (3, 2, True)], {}, "gap"),
        ([(0, 3, False), (2, 2, True)], {}, "overlap"),
        ([(0, 4, True)], {}, "length"),
        ([(0, 5, False)], {}, "unended"),
        ([(0, 5, True)], {"num_in_samples": 4}, "samples"),
        ([(0, 5, True)], {"num_in_samples": 4}, "ledger"),
    ],
)
def test_whatever_is_wrong_with_tokens_is_counted(
    segments: list[tuple[int, int, bool]], changes: dict[str, int], wrong: str
) -> None:
    """A hole, a repetition, a generation that ended too early or never, samples that are not what was sampled."""
    assert misplaced(history(*segments, **changes))[wrong] > 0


def test_tokens_count_in_the_window_in_which_they_were_sampled() -> None:
    """A segment's evenly over the time since the last word of its generation; every window together has all."""
    segments = [event for event in history((0, 4, False), (4, 6, True), length=10) if isinstance(event, SegmentSampled)]
    claim = GenerationClaimed(run=RUN, episode="x", generation="c", shard=0, worker="w", nonce="n", start=0)
    events: list[tuple[Event, float]] = [(claim, 10.0), (segments[0], 14.0), (segments[1], 20.0)]

    assert sampled_in(events, (0.0, 100.0)) == 10.0
    assert sampled_in(events, (12.0, 17.0)) == pytest.approx(2.0 + 3.0)
    edges = [0.0, 11.0, 13.5, 19.0, 30.0]
    assert sum(sampled_in(events, window) for window in pairwise(edges)) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("sampled", "trained", "masked", "tokens"),
    [
        (100.0, 100.0, 0.0, 100.0),
        (60.0, 100.0, 0.0, 76.0),
        (200.0, 100.0, 0.0, 100.0),
        (100.0, 50.0, 50.0, 50.0),
    ],
    ids=["steady", "rolled out before", "piles up", "masked"],
)
def test_a_token_counts_as_far_as_its_work_was_done(sampled: float, trained: float, masked: float, tokens: float) -> None:
    """Rolling out is 60 % of the work here. Never more than were trained, and masked ones not at all."""
    assert Done(sampled, trained, masked, rollout_share=0.6).tokens == pytest.approx(tokens)


def test_work_is_that_of_the_window_and_never_more_than_steps_used() -> None:
    """Two halves of a window have its whole; a step that trains a group counts what rolling it out took, wherever that was."""
    cell = Cell("auto", "auto", token_scale=10)
    events = history((0, 5, True))
    claim = GenerationClaimed(run=RUN, episode="x", generation="c", shard=0, worker="w", nonce="n", start=0)
    timed: list[tuple[Event, float]] = [(event, 10.0) for event in [*events[:3], claim]]
    timed += [(event, 20.0) for event in events[3:]]
    step = StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g",), metrics={})
    trained = cell.cost.train_seconds(60)
    decode = work_of(cell.workload, cell.cost).decode_seconds(10, 50)

    whole = work_seconds(cell, timed, (0.0, 30.0), [step]) - trained
    assert whole == pytest.approx(cell.cost.prefill_seconds(10) + decode)
    half = work_seconds(cell, timed, (15.0, 30.0), [step]) - trained
    assert half == pytest.approx(decode / 2)
    assert work_seconds(cell, timed, (0.0, 30.0), []) == 0.0
