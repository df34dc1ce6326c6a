"""What a run costs, measured: each figure by a small story, then what is always true of the fold."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import (
    BatchReady,
    DropReason,
    EpisodeEnded,
    EpisodeStatus,
    Event,
    GroupAdmitted,
    GroupDropped,
    Role,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    StepTaken,
    TrainerStarted,
)
from seamlessflow_scheduler.admission.measurements import RunMeasurements
from tests.services.scheduler.scheduler_world import RUN, config, origin

WORKER, TRAINER = "rollout-worker", "trainer"
Told = tuple[Event, float]


def measures(*told: Told, **algorithm: int) -> RunMeasurements:
    made = RunMeasurements(RUN, config(algorithm={"groups_per_step": 2, "group_size": 2, "max_staleness": 4, **algorithm}))
    for event, at in told:
        made.apply(event, at)
    return made


def assigned(node: str, epoch: int, role: Role, gang: tuple[str, ...] = ()) -> RoleAssigned:
    return RoleAssigned(run=RUN, node=node, epoch=epoch, role=role, tags=(), reason="why", gang=gang)


def taken(node: str, epoch: int, service: str) -> RoleTaken:
    return RoleTaken(run=RUN, node=node, epoch=epoch, service=service)


def released(node: str, epoch: int, service: str) -> RoleReleased:
    return RoleReleased(run=RUN, node=node, epoch=epoch, service=service)


def group(name: str, at: float, tokens: int | None = None, failed: bool = False) -> list[Told]:
    """Admitted at once; its two members end one second before ``at``, and then. tokens: of each; failed: its first member."""
    told: list[Told] = [
        (GroupAdmitted(run=RUN, group=name, task=name, env="single", num_episodes=2, evaluation=None, step=0), 0)
    ]
    for index in range(2):
        end = EpisodeEnded(
            run=RUN,
            episode=f"{name}-{index}-0",
            shard=0,
            origin=origin(name, index),
            status=EpisodeStatus.RUN_ENDED if failed and index == 0 else EpisodeStatus.COMPLETED,
            reward=1.0,
            sampled_tokens=tokens,
        )
        told.append((end, at - 1 + index))
    return told


def batch(step: int, at: float, tokens: int = 100) -> Told:
    return BatchReady(run=RUN, step=step, line=1, num_groups=2, num_tokens=tokens), at


def step(number: int, at: float, *groups: str) -> Told:
    return StepTaken(run=RUN, step=number, line=1, weights_version=number, groups=groups, metrics={}), at


BEGUN: Told = (TrainerStarted(run=RUN, line=1, step=0, weights_version=0), 0.0)
ROLLS: list[Told] = [(assigned("a", 1, Role.ROLLOUT), 0.0), (taken("a", 1, WORKER), 0.0)]


def test_nothing_is_known_of_a_run_that_did_nothing():
    """None, not zero: a policy must not divide by it."""
    assert set(asdict(measures().rates).values()) == {None, 0}


def test_a_hand_over_takes_from_the_lease_to_the_device_each_way():
    """Of several the one in the middle; a lease that only changes the gang begins no other."""
    rates = measures(
        *ROLLS,
        (assigned("a", 2, Role.TRAIN), 10.0),
        (assigned("a", 3, Role.TRAIN, ("a", "b")), 11.0),
        (taken("a", 3, TRAINER), 14.0),
        (assigned("a", 4, Role.ROLLOUT), 20.0),
        (taken("a", 4, WORKER), 22.5),
    ).rates
    assert (rates.reclaim_seconds, rates.lend_seconds) == (4.0, 2.5)


def test_a_node_may_say_what_it_took_before_the_scheduler_says_what_it_gave():
    """The lease is written first, the word comes after it."""
    rates = measures(*ROLLS, (taken("a", 2, TRAINER), 9.9), (assigned("a", 2, Role.TRAIN), 10.0)).rates
    assert rates.reclaim_seconds == 0.0


def test_a_step_costs_its_time_on_every_node_of_its_gang():
    """It begins when its batch and its device are there; that two nodes take it counts twice."""
    told = [
        BEGUN,
        batch(1, 10.0),
        (assigned("a", 1, Role.TRAIN, ("a", "b")), 10.0),
        (taken("a", 1, TRAINER), 12.0),
    ]
    assert measures(*told).rates.step_began_at == 12.0
    rates = measures(*told, step(1, 22.0)).rates
    assert (rates.train_seconds, rates.step_nodes, rates.step_taken_at, rates.step_began_at) == (20.0, 2, 22.0, None)


def test_what_a_step_will_cost_is_told_by_its_tokens():
    """The next batch has three times as many as the last."""
    rates = measures(
        BEGUN,
        (assigned("a", 1, Role.TRAIN), 0.0),
        (taken("a", 1, TRAINER), 0.0),
        batch(1, 0.0, 100),
        step(1, 10.0),
        batch(2, 11.0, 300),
    ).rates
    assert (rates.step_seconds, rates.train_seconds, rates.step_began_at) == (30.0, 10.0, 11.0)


def test_a_step_that_begins_before_its_batch_is_whole_costs_what_its_whole_batch_costs():
    """One of its two groups is there when it begins, the other comes in time."""
    half = BatchReady(run=RUN, step=1, line=1, num_groups=1, num_tokens=50), 0.0
    lead = [(assigned("b", 1, Role.TRAIN), 0.0), (taken("b", 1, TRAINER), 0.0)]
    groups = [*group("g1", 0.0, 25), *group("g2", 1.0, 25)]
    told = [BEGUN, *ROLLS, *lead, *groups, half]
    rates = measures(*told, step(1, 10.0, "g1", "g2")).rates
    assert rates.train_seconds == pytest.approx(10.0)
    second = BatchReady(run=RUN, step=2, line=1, num_groups=1, num_tokens=150), 11.0
    assert measures(*told, step(1, 10.0, "g1", "g2"), second).rates.step_seconds == pytest.approx(30.0)


def first_step(*groups: list[Told]) -> RunMeasurements:
    """Groups end, and node b takes a step of 100 tokens in 10 seconds while a goes on rolling out."""
    lead = [(assigned("b", 1, Role.TRAIN), 0.0), (taken("b", 1, TRAINER), 0.0)]
    told = [BEGUN, *ROLLS, *lead, *(each for group in groups for each in group)]
    return measures(*told, batch(1, 20.0), step(1, 30.0))


def test_training_is_measured_for_what_was_rolled_out_not_for_the_short_groups_that_were_finished_first():
    """A tenth of a second for each token; the episodes whose rollout was measured have 250 on average, two to a group."""
    rates = first_step(group("g1", 10.0, 25), group("g2", 12.0, 25), group("g3", 20.0, 700)).rates
    assert rates.train_seconds == pytest.approx(0.1 * 250 * 2 * 2)
    assert rates.rollout_seconds == pytest.approx(30.0 / 3 * 2)


def test_the_share_of_training_does_not_depend_on_how_long_the_first_groups_are():
    """The same seconds for each token, rolled out and trained: the same share, whatever ended first."""
    short, mixed = first_step(group("g1", 10.0, 50)).rates, first_step(group("g1", 10.0, 10), group("g2", 11.0, 40)).rates
    assert short.train_seconds and short.rollout_seconds and mixed.train_seconds and mixed.rollout_seconds
    assert short.train_seconds / short.rollout_seconds == pytest.approx(mixed.train_seconds / mixed.rollout_seconds)


def test_what_an_attempt_sampled_that_did_not_complete_is_not_trained():
    """It took rollout all the same."""
    assert first_step(group("g1", 10.0, 50, failed=True)).rates.train_seconds == pytest.approx(0.1 * 50 * 2)


def test_where_a_runner_does_not_say_how_many_tokens_there_were_a_step_costs_what_the_last_ones_took():
    """One episode without a count is enough."""
    assert first_step(group("g1", 10.0, 50), group("g2", 12.0)).rates.train_seconds == 10.0


def test_a_gang_that_changes_during_a_step_counts_from_the_next_one_on():
    """The lease names the nodes of the next step."""
    told = [
        BEGUN,
        (assigned("a", 1, Role.TRAIN), 0.0),
        (taken("a", 1, TRAINER), 0.0),
        batch(1, 0.0),
        (assigned("a", 2, Role.TRAIN, ("a", "b")), 5.0),
        (taken("a", 2, TRAINER), 5.0),
    ]
    assert measures(*told, step(1, 10.0)).rates.step_nodes == 1
    assert measures(*told, step(1, 10.0), batch(2, 10.0)).rates.step_nodes == 2


def test_rollout_costs_node_seconds_for_each_batch_that_ends():
    """Two nodes for 20 s, one of them for 10 s more; two groups end, a batch. The first step's cost gives way to the next's."""
    both = [*ROLLS, (assigned("b", 1, Role.ROLLOUT), 0.0), (taken("b", 1, WORKER), 0.0)]
    first = [BEGUN, *both, *group("g1", 5.0), *group("g2", 6.0), step(1, 20.0, "g1", "g2")]
    assert measures(*first).rates.rollout_seconds == 40.0

    second = [(assigned("b", 2, Role.TRAIN), 20.0), *group("g3", 21.0), *group("g4", 22.0), step(2, 30.0, "g3", "g4")]
    assert measures(*first, *second).rates.rollout_seconds == 10.0


def test_dropped_groups_cost_rollout_and_are_no_batch():
    """Half of what is finished is of use, so a useful batch costs twice as much."""
    told = [BEGUN, *ROLLS, *group("g1", 5.0), *group("g2", 6.0)]
    dropped = (GroupDropped(run=RUN, group="g1", reason=DropReason.ZERO_VARIANCE), 7.0)
    assert measures(*told, dropped, step(1, 20.0, "g2")).rates.rollout_seconds == 40.0


def test_rollout_that_may_have_idled_at_the_bound_is_not_believed():
    """More than half of the batches that may wait are waiting: the cost that was measured before stands."""
    busy = [BEGUN, *ROLLS, *group("g1", 5.0), *group("g2", 6.0), step(1, 20.0, "g1", "g2")]
    piled = [each for number in range(3, 9) for each in group(f"g{number}", 30.0)]
    assert measures(*busy, *piled, step(2, 100.0), max_staleness=2).rates.rollout_seconds == 20.0


def test_what_waits_is_counted_when_a_step_is_taken():
    """Finished groups that no step used, in batches; and as many as before that."""
    told = [BEGUN, *ROLLS, *group("g1", 1.0), *group("g2", 2.0), *group("g3", 3.0), step(1, 5.0, "g1", "g2")]
    assert measures(*told).rates.waited == (0.5, float("inf"))
    assert measures(*told, *group("g4", 6.0), *group("g5", 7.0), step(2, 9.0, "g3")).rates.waited == (1.0, 0.5)


def history(rng: Random) -> list[Told]:
    """A plausible run: three nodes change roles, groups end, steps are taken, a trainer begins again."""
    told: list[Told] = [BEGUN]
    at, epochs, number, line = 0.0, dict.fromkeys("abc", 0), 0, 1
    finished: list[str] = []
    for turn in range(40):
        at += rng.choice([0.0, 0.5, 3.0])
        node, what = rng.choice("abc"), rng.random()
        if what < 0.4:
            epochs[node] += 1
            role = rng.choice([Role.ROLLOUT, Role.TRAIN, Role.IDLE])
            gang = rng.choice([(), (node, "c"), ("a", node)]) if role is Role.TRAIN else ()
            told.append((assigned(node, epochs[node], role, gang), at))
            if rng.random() < 0.8 and role is not Role.IDLE:
                told.append((taken(node, epochs[node], WORKER if role is Role.ROLLOUT else TRAINER), at + rng.random()))
            if role is not Role.ROLLOUT:
                told.append((released(node, epochs[node], WORKER), at + rng.random()))
        elif what < 0.7:
            finished.append(f"g{turn}")
            told += group(finished[-1], at + 1.0)
        elif what < 0.95:
            number += 1
            told.append((BatchReady(run=RUN, step=number, line=line, num_groups=2, num_tokens=9), at))
            used = tuple(finished[-2:])
            told.append((StepTaken(run=RUN, step=number, line=line, weights_version=1, groups=used, metrics={}), at + 2.0))
        else:
            line, number = line + 1, max(0, number - 1)
            told.append((TrainerStarted(run=RUN, line=line, step=number, weights_version=line), at))
    return told


@given(seed=st.integers(0, 10_000), again=st.lists(st.integers(0, 200), max_size=20))
def test_what_comes_again_changes_nothing(seed, again):
    """A queue delivers twice, and a journal is folded whose end was heard already."""
    told = history(Random(seed))
    once = measures(*told)
    twice = measures()
    for place, (event, at) in enumerate(told):
        twice.apply(event, at)
        for other in again:
            if other <= place:
                twice.apply(*told[other])
    for event, at in told:
        twice.apply(event, at + 1000.0)
    assert twice.rates == once.rates


@given(seed=st.integers(0, 10_000), place=st.integers(0, 200))
def test_events_that_have_nothing_to_do_with_each_other_may_come_in_any_order(seed, place):
    """Of two nodes, or of a node and a group: each brings its own time."""
    told = history(Random(seed))
    place %= len(told) - 1
    first, second = told[place][0], told[place + 1][0]
    if _subject(first) is None or _subject(second) is None or _subject(first) == _subject(second):
        return
    swapped = [*told[:place], told[place + 1], told[place], *told[place + 2 :]]
    ours, theirs = asdict(measures(*told).rates), asdict(measures(*swapped).rates)
    for name, value in ours.items():
        if name not in ("reclaim_seconds", "lend_seconds"):  # medians of the newest nine, in the order in which they came
            assert theirs[name] == pytest.approx(value), name


def _subject(event: Event) -> str | None:
    """Whom an event is about; None: the run."""
    if isinstance(event, RoleReleased):
        return event.node
    if isinstance(event, RoleAssigned | RoleTaken):
        return event.node if getattr(event, "role", None) is not Role.TRAIN and event.node != "a" else None
    if isinstance(event, GroupAdmitted):
        return event.group
    return event.origin.group if isinstance(event, EpisodeEnded) else None


@given(seed=st.integers(0, 10_000))
def test_nothing_that_is_measured_is_negative_or_without_end(seed):
    """Whatever the order of RoleTaken and RoleAssigned."""
    for name, value in asdict(measures(*history(Random(seed))).rates).items():
        if name != "waited" and value is not None:
            assert 0 <= value < float("inf"), name
