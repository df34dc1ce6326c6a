"""GRPO and the per-token correction."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Float32s, MaskReason
from seamlessflow.errors import BadInput
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.algorithms.grpo import group_advantages, policy_loss
from seamlessflow_trainer.algorithms.off_policy_correction import importance_ratios, logprob_gap, masked
from seamlessflow_trainer.data.batch import is_stale, make_batch
from seamlessflow_trainer.data.groups import TrainingGroup
from tests.domain.training_builders import a_sample, an_algorithm, samples_ready

REWARDS = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16)


@given(REWARDS, st.booleans())
def test_advantages_of_a_group_sum_to_zero(rewards: list[float], normalize_std: bool) -> None:
    """A group has no better or worse than average as a whole."""
    advantages = group_advantages(rewards, normalize_std=normalize_std)

    scale = max(1.0, *(abs(a) for a in advantages))
    assert abs(math.fsum(advantages)) <= 1e-3 * scale
    in_order = [advantage for _, advantage in sorted(zip(rewards, advantages, strict=True))]
    assert all(worse <= better + 1e-9 * scale for worse, better in itertools.pairwise(in_order))


def test_equal_rewards_teach_nothing() -> None:
    """Exactly zero, also where the mean of the rewards is not one of them in floating point."""
    assert group_advantages([0.1] * 7) == [0.0] * 7


def test_normalised_advantages_have_unit_deviation() -> None:
    """One success among four: std divides by the group's size."""
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([1.7320508, -0.5773503, -0.5773503, -0.5773503])
    assert group_advantages([1, 0, 0, 0], normalize_std=False) == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_grader_is_an_error(broken: float) -> None:
    """It should stop the run, not bend the policy."""
    with pytest.raises(ValueError, match="verifier"):
        group_advantages([1.0, broken])


@given(st.integers(1, 40), st.lists(st.integers(0, 39), max_size=6), st.integers(0, 2**31))
def test_micro_batches_do_not_change_the_gradient(num_tokens: int, cuts: list[int], seed: int) -> None:
    """However the tokens of a step are cut, the parts' gradients add up to the same."""
    generator = torch.Generator().manual_seed(seed)
    logprobs, engine, advantages = (torch.randn(num_tokens, generator=generator) for _ in range(3))
    whole = logprobs.clone().requires_grad_()
    policy_loss(whole, engine, advantages, importance_cap=2.0, num_step_tokens=num_tokens).backward()

    parts = logprobs.clone().requires_grad_()
    edges = sorted({0, num_tokens, *(cut for cut in cuts if cut < num_tokens)})
    for start, end in itertools.pairwise(edges):
        piece = slice(start, end)
        policy_loss(parts[piece], engine[piece], advantages[piece], importance_cap=2.0, num_step_tokens=num_tokens).backward()

    torch.testing.assert_close(parts.grad, whole.grad)


def test_the_weight_is_the_truncated_ratio_and_has_no_gradient() -> None:
    """d loss / d logp = - min(ratio, cap) * advantage / N."""
    logprobs = torch.tensor([-1.0, -1.0, -3.0], requires_grad=True)
    engine, advantages = torch.tensor([-1.0, -5.0, -2.0]), torch.tensor([1.0, 1.0, -2.0])
    policy_loss(logprobs, engine, advantages, importance_cap=2.0, num_step_tokens=3).backward()

    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, -2.0, 2 * math.exp(-1)]) / 3)


def test_an_absurd_token_does_not_make_the_ratio_infinite() -> None:
    """A ratio is a metric that travels in an event, where infinity is refused."""
    assert torch.isfinite(importance_ratios(torch.tensor([0.0]), torch.tensor([-500.0]))).all()


def test_the_gap_is_measured_over_current_tokens_alone() -> None:
    """Older tokens differ because the policy learned, which is no mismatch."""
    gap, count = logprob_gap(torch.tensor([-1.0, -9.0]), torch.tensor([-1.5, -1.0]), torch.tensor([True, False]))

    assert (gap, count) == (0.5, 1)


def test_tokens_are_masked_one_by_one() -> None:
    """Half too old, the last one too far: the others train."""
    reasons = masked(np.array([3, 4, 8, 9]), np.array([3, 0, 2, 5]), max_staleness=2, max_sequence_tokens=9)

    assert {reason: of.tolist() for reason, of in reasons.items()} == {
        MaskReason.STALE: [True, False, False, False],
        MaskReason.TOO_LONG: [False, False, False, True],
    }


STEPS = VersionSteps([(0, 0), (1, 1), (2, 2), (3, 3)])


def a_group(*samples: object, rewards: tuple[float, ...] = (1.0, 0.0)) -> TrainingGroup:
    members = [samples_ready(index=i, reward=r, samples=[s]) for i, (s, r) in enumerate(zip(samples, rewards, strict=True))]  # type: ignore[list-item]
    return TrainingGroup("g", tuple(members))


@given(
    samples=st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)), max_size=4), min_size=2, max_size=2
    ),
    max_staleness=st.integers(0, 3),
    max_sequence_tokens=st.integers(1, 20),
)
def test_a_batch_is_every_token_judged_on_its_own(samples, max_staleness, max_sequence_tokens) -> None:
    """Turns of some prompt tokens and some sampled ones of a version: as if each token were looked at by itself."""
    made, trained, masked_counts, ages = [], [], Counter[MaskReason](), Counter[int]()
    for turns in samples:
        place, spans, versions = 0, [], []
        for prompt_tokens, num_tokens, version in turns:
            spans.append((place + prompt_tokens, place + prompt_tokens + num_tokens))
            versions.append((version, num_tokens))
            for position in range(*spans[-1]):
                ages[3 - version] += 1
                if position >= max_sequence_tokens:
                    masked_counts[MaskReason.TOO_LONG] += 1
                elif 3 - version > max_staleness:
                    masked_counts[MaskReason.STALE] += 1
                else:
                    trained.append((len(made), position, -float(position), version == 3))
            place = spans[-1][1]
        sample = a_sample(range(place), spans, versions=versions)
        logprobs = Float32s([-float(position) for span in spans for position in range(*span)])
        made.append(sample.model_copy(update={"logprobs": logprobs}))

    batch = make_batch(
        [a_group(*made)], STEPS, 3, 3, an_algorithm(max_staleness=max_staleness, max_sequence_tokens=max_sequence_tokens)
    )

    found = [
        (number, position, float(batch.engine_logprobs_N[path.first + at]), bool(batch.is_current_N[path.first + at]))
        for number, path in enumerate(batch.paths[0])
        for at, position in enumerate(path.trained)
    ]
    assert found == trained and batch.num_trained == len(trained) and dict(batch.ages) == dict(ages)
    for number, path in enumerate(batch.paths[0]):
        advantages = batch.advantages_N[path.first : path.first + len(path.trained)]
        assert bool(((advantages > 0) == (number == 0)).all())
    said = Counter[str]()
    for account in batch.episodes[0]:
        said.update(account.masked)
    assert said == masked_counts and sum(account.trained for account in batch.episodes[0]) == len(trained)


def test_a_trajectory_half_of_whose_tokens_are_too_old_trains_its_other_half() -> None:
    """Weights changed in the middle of it; the account says where each token went."""
    half_old = a_sample([5, 6, 7, 8, 9], [(1, 5)], versions=[(0, 2), (3, 2)])
    fresh = a_sample([5, 6], [(1, 2)], versions=[(3, 1)])
    batch = make_batch([a_group(half_old, fresh)], STEPS, 3, 3, an_algorithm(max_staleness=2))

    assert [list(path.trained) for path in batch.paths[0]] == [[3, 4], [1]]
    assert [(e.trained, e.masked) for e in batch.episodes[0]] == [(2, {"stale": 2}), (1, {})]
    assert batch.advantages_N.tolist() == pytest.approx([1.0, 1.0, -1.0])
    assert batch.is_current_N.tolist() == [True] * 3


def test_every_sampled_token_is_accounted_for() -> None:
    """trained + masked = sampled, also when everything is cut for length."""
    group = a_group(a_sample(range(9), [(1, 3), (6, 9)]), a_sample(range(4), [(2, 4)]))
    batch = make_batch([group], VersionSteps([(0, 0)]), 0, 0, an_algorithm(max_sequence_tokens=2))

    account = [(e.trained, e.masked) for e in batch.episodes[0]]
    assert account == [(1, {"too_long": 4}), (0, {"too_long": 2})]
    assert batch.num_trained + batch.num_masked == group.num_sampled == 7


def test_a_group_is_stale_only_when_every_token_is() -> None:
    """One version within the bound is enough to keep it."""
    old, mixed = a_sample([5, 6], [(1, 2)], versions=[(0, 1)]), a_sample([5, 6, 7], [(1, 3)], versions=[(0, 1), (1, 1)])

    assert is_stale(a_group(old, old), STEPS, 3, max_staleness=2)
    assert not is_stale(a_group(old, mixed), STEPS, 3, max_staleness=2)


def test_a_batch_with_a_token_of_the_future_is_refused() -> None:
    """Its version belongs to a step that was not taken on this line."""
    future = a_sample([5, 6], [(1, 2)], versions=[(3, 1)])
    with pytest.raises(BadInput, match="another line"):
        make_batch([a_group(future, future)], STEPS, 2, 2, an_algorithm())
