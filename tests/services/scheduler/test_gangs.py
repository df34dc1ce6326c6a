"""Gangs: who belongs to one, in which order it comes together and parts, when it is lent, and how large ``auto`` makes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Role
from seamlessflow.errors import ConfigError
from seamlessflow_scheduler.fleet_state import HeldLease
from seamlessflow_scheduler.placement.plan import next_plan
from seamlessflow_scheduler.placement.run_allocation import allocate
from seamlessflow_scheduler.policy import POLICIES, Assignment, Demand, Node, Process, Rates, policy_of
from seamlessflow_scheduler.policy.auto import gang_size
from seamlessflow_scheduler.policy.gang import RELEASE_SECONDS
from seamlessflow_scheduler.policy.validation import checked_assignments
from tests.services.scheduler.test_policies import TRAINER, WORKER, both, node, obey

MEASURED = Rates(
    rollout_seconds=250.0,
    train_seconds=100.0,
    reclaim_seconds=3.0,
    lend_seconds=3.0,
    step_taken_at=0.0,
    group_finished_at=0.0,
    waited=(1.1, 1.1),
    step_nodes=2,
)
"""Of eight nodes 2.29 should train."""


def demand(policy: str = "multiplexed", **wants: object) -> Demand:
    return replace(Demand("r1", policy, train_nodes=3, groups_per_step=10, max_staleness=4), **wants)


def asked(nodes: list[Node], want: Demand, now: float = 0.0) -> list[Assignment]:
    return POLICIES[want.policy](nodes, want, now)


def settled(nodes: list[Node]) -> dict[str, int]:
    """All trainers obey, and no step of an older lease is in progress."""
    return {each.name: each.lease.epoch for each in nodes if each.lease is not None}


def roles(given_out: list[Assignment]) -> str:
    """One letter a node: R rollout, T trainer of the run in training, t member, r trainer of the run that rolls out, - idle."""
    letters = {(Role.ROLLOUT, False): "R", (Role.ROLLOUT, True): "r", (Role.TRAIN, True): "T", (Role.TRAIN, False): "t"}
    return "".join(letters.get((each.role, each.trainer), "-") for each in sorted(given_out, key=lambda a: a.node))


FOUR = [both(name) for name in "abcd"]


def test_members_take_their_devices_first_and_the_lead_last():
    """Release before grant: until all of them are there the lead rolls out, and then it has the whole gang."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    first = asked(nodes, demand(wants_train=True))
    assert roles(first) == "rttR" and {each.gang for each in first if each.role is Role.TRAIN} == {("a", "b"), ("a", "c")}

    slow = [replace(each, holding=frozenset({WORKER})) if each.name == "c" else each for each in obey(nodes, first)]
    assert roles(asked(slow, demand(wants_train=True), 1.0)) == "rttR"
    there = obey(nodes, first)
    second = asked(there, demand(wants_train=True), 1.0)
    assert roles(second) == "TttR" and second[0].gang == ("a", "b", "c")


def test_who_does_not_get_its_device_in_time_is_left_out():
    """And comes in later, for the next step, without another hand-over; or another node takes its place."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    told = obey(nodes, asked(nodes, demand(wants_train=True)))
    slow = [replace(each, holding=frozenset({WORKER})) if each.name == "c" else each for each in told]
    assert roles(asked(slow, demand(wants_train=True), RELEASE_SECONDS)) == "rtRt"

    without = asked(slow[:3], demand(wants_train=True), RELEASE_SECONDS)
    assert roles(without) == "Ttt" and without[0].gang == ("a", "b")
    later = obey(slow[:3], without, RELEASE_SECONDS)
    assert asked(later, demand(wants_train=True), RELEASE_SECONDS)[0].gang == ("a", "b", "c")


def test_a_member_that_is_gone_leaves_the_gang_at_once():
    """Its process is away: the next step is not for it."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    for _ in range(2):
        nodes = obey(nodes, asked(nodes, demand(wants_train=True)))
    left = [both("b", gone=(TRAINER,)), *[each for each in nodes if each.name != "b"]]
    left[0] = replace(left[0], lease=next(each.lease for each in nodes if each.name == "b"))
    assigned = asked(sorted(left, key=lambda each: each.name), demand(wants_train=True, train_nodes=2))
    assert "b" not in assigned[0].gang


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_node_without_a_trainer_leaves_its_gang_and_the_others_go_on(policy: str, gone: str) -> None:
    """Its worker lives, and its trainer does not come back or ``train`` was taken from it: lead or member, nothing freezes."""
    want = demand(policy, wants_train=True, train_nodes=2)
    nodes = obey(FOUR, asked(FOUR, want))
    for _ in range(4):
        nodes = obey(nodes, asked(nodes, replace(want, settled_epochs=settled(nodes))))
    left = [node(each.name, WORKER) if each.name == gone else each for each in nodes]
    left = [replace(new, lease=old.lease, lease_since=old.lease_since) for new, old in zip(left, nodes, strict=True)]

    assigned, wrong = checked_assignments(policy_of(policy), left, replace(want, settled_epochs=settled(nodes)), 60.0)

    assert wrong is None
    by_name = {each.node: each for each in assigned}
    assert by_name[gone].role is not Role.TRAIN and sum(each.trainer for each in assigned) == 1
    assert all(gone not in each.gang for each in assigned if each.trainer)


def test_a_gang_that_waited_for_its_batch_is_not_lent_when_the_batch_is_complete() -> None:
    """However long ago it got its devices: the time counts from the last group on."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    for _ in range(2):
        nodes = obey(nodes, asked(nodes, demand(wants_train=True)))
    complete = replace(MEASURED, group_finished_at=30.0)

    assert roles(asked(nodes, demand(groups_ready=10, rates=complete), 30.5)) == "TttR"
    assert roles(asked(nodes, demand(groups_ready=10, rates=complete), 40.0)) == "rRRR"


def test_colocated_hands_nothing_back_as_nobody_would_go_on_with_it() -> None:
    """The generations of its lead stay in the engine, as those of all others do."""
    nodes = obey(FOUR, asked(FOUR, demand("colocated")))
    for _ in range(4):
        assigned = asked(nodes, demand("colocated", wants_train=True, train_nodes=2))
        assert not any(each.hand_back for each in assigned)
        nodes = obey(nodes, assigned)
    assert roles(assigned) == "Tt--"


def test_a_member_of_a_gang_is_not_spare_for_another_run() -> None:
    """Its device belongs to a step of its own run, though that run would have all it needs without it."""
    serving = {"m": "trajectory-manager", "n": "agent-runner"}
    services = [Node(name, {service: Process(frozenset({"serve"}))}) for name, service in serving.items()]
    nodes = [both(name) for name in "abcd"]
    for _ in range(3):
        nodes = obey(nodes, asked(nodes, demand(wants_train=True)))
    other = replace(demand(), run="r2")

    given = allocate([*nodes, *services], [demand(wants_train=True), other]).run_of

    assert {given[name] for name in "abc"} == {"r1"}


def gang_of_three(policy: str) -> tuple[list[Node], Demand]:
    """a leads b and c in a step; d rolls out or waits."""
    want = demand(policy, wants_train=True)
    nodes = obey(FOUR, asked(FOUR, want))
    for _ in range(4):
        nodes = obey(nodes, asked(nodes, replace(want, settled_epochs=settled(nodes))))
    assert roles(asked(nodes, want))[:3] == "Ttt"
    return nodes, replace(want, settled_epochs=settled(nodes))


def planned(nodes: list[Node], want: Demand) -> dict[str, Assignment]:
    leases = {each.name: HeldLease(each.lease, 1, 0.0) for each in nodes if each.lease is not None}
    return {each.node: each for each in next_plan(nodes, leases, [want], 1.0).assignments}


@pytest.mark.parametrize("policy", ["multiplexed", "colocated"])
@pytest.mark.parametrize("is_drained", [True, False], ids=["drained", "untagged"])
def test_a_member_that_people_send_away_stays_until_the_step_is_taken(policy: str, is_drained: bool) -> None:
    """The lead's next step is without it; the one in progress ends with it."""
    nodes, want = gang_of_three(policy)
    idle = {**nodes[1].processes, TRAINER: Process(frozenset())}
    left = replace(nodes[1], is_drained=True) if is_drained else replace(nodes[1], processes=idle, taken_away={"train"})
    sent = [nodes[0], left, *nodes[2:]]

    first = planned(sent, want)
    assert (first["b"].run, first["b"].role, first["b"].gang) == ("r1", Role.TRAIN, ("a", "b"))
    assert "when the step is taken" in first["b"].reason and first["a"].gang == ("a", "c")

    written = obey(sent, list(first.values()))
    assert planned(written, want)["b"].role is Role.TRAIN  # the lead has not taken its new lease up, or its step goes on
    after = planned(written, replace(want, settled_epochs=settled(written)))["b"]
    assert after.role is not Role.TRAIN and (after.hand_back or not is_drained)
    assert after.run == (None if is_drained else "r1")


def test_the_lease_of_a_member_that_is_drained_says_of_versions_what_it_said() -> None:
    """No lease of a step changes because of them."""
    nodes, want = gang_of_three("multiplexed")
    assert nodes[1].lease is not None
    lease = nodes[1].lease.model_copy(update={"keeps": 3, "let_go": (1,)})
    assigned = planned([nodes[0], replace(nodes[1], is_drained=True, lease=lease), *nodes[2:]], want)["b"]

    assert (assigned.role, assigned.keeps, assigned.let_go) == (Role.TRAIN, 3, (1,))


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_member_that_is_drained_waits_for_nobody_who_is_dead(gone: str) -> None:
    """Its own process ended, or the node of the lead has no trainer any more: the step is over."""
    nodes, want = gang_of_three("multiplexed")
    without = node(gone, WORKER, TRAINER, gone=(TRAINER,)) if gone == "b" else node(gone, WORKER)
    left = [replace(each, processes=without.processes) if each.name == gone else each for each in nodes]
    drained = [replace(each, is_drained=True) if each.name == "b" else each for each in left]

    assert planned(drained, want)["b"].run is None


def test_who_leaves_a_gang_holds_its_device_until_the_step_is_taken():
    """The lead's lease no longer names it; the step that began with it may still be in progress."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    for _ in range(2):
        nodes = obey(nodes, asked(nodes, demand(wants_train=True)))
    fewer = demand(wants_train=True, train_nodes=2, settled_epochs=settled(nodes))
    assigned = asked(nodes, fewer)
    assert roles(assigned) == "TttR" and assigned[0].gang == ("a", "b")

    written = obey(nodes, assigned)
    assert roles(asked(written, fewer)) == "TttR"  # the lead has not taken the new lease up
    assert roles(asked(written, replace(fewer, settled_epochs=settled(written)))) == "TtRR"


def test_a_gang_is_lent_when_the_gap_is_worth_it_and_kept_when_it_is_not():
    """Six groups are missing and take 75 s; then one, which takes less than a hand-over there and back."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    for _ in range(2):
        nodes = obey(nodes, asked(nodes, demand(wants_train=True)))
    kept = asked(nodes, demand(groups_ready=10, rates=MEASURED), 1.0)
    assert roles(kept) == "TttR" and "the groups of the next batch are finished" in kept[0].reason
    ahead = replace(MEASURED, group_finished_at=1.5)  # by the journal's clock
    assert roles(asked(nodes, demand(groups_ready=10, rates=ahead), 1.0)) == "TttR"
    near = replace(MEASURED, rollout_seconds=60.0)
    assert roles(asked(nodes, demand(groups_ready=9, rates=near), 1.0)) == "TttR"
    lent = asked(nodes, demand(groups_ready=4, rates=MEASURED), 1.0)
    assert roles(lent) == "rRRR" and "due in 150 s" in lent[0].reason and "(9.0 s)" in lent[0].reason


def test_a_gang_that_is_lent_is_called_back_in_time():
    """When the next batch is due as soon as the hand-over is done; not while groups finish slower than that."""
    nodes = obey(FOUR, asked(FOUR, demand()))
    rates = replace(MEASURED, rollout_seconds=50.0)
    assert roles(asked(nodes, demand(groups_ready=8, rates=rates), 1.0)) == "rRRR"
    called = asked(nodes, demand(groups_ready=9, rates=rates), 1.0)
    assert roles(called) == "rttR" and "due in 5.0 s" in called[1].reason
    assert roles(asked(nodes, demand(groups_ready=9, rates=rates), 30.0)) == "rRRR"  # no group was finished for 30 s


def test_a_single_node_never_waits_for_a_batch_that_nobody_else_rolls_out():
    """It is lent at once, whatever was measured."""
    alone = obey([both("a")], asked([both("a")], demand(wants_train=True)))
    assert roles(asked(alone, demand(groups_ready=9, rates=MEASURED), 1.0)) == "r"


def test_a_fleet_that_cannot_train_rolls_out():
    """No node can train: all that can roll out do, and no node is told to train."""
    nodes = [node("a", WORKER), node("b", WORKER)]
    for policy in ("multiplexed", "colocated", "auto"):
        assert roles(asked(nodes, demand(policy, wants_train=True))) == "RR"


def sized(num_nodes: int, now: float = 100.0, current: int = 2, **wants: object) -> int:
    """What auto makes of a gang of ``current``, with as many members as it likes."""
    nodes = [both(f"n{number}") for number in range(num_nodes)]
    want = demand("auto", train_nodes=current, wants_train=True)
    for _ in range(3):
        nodes = obey(nodes, POLICIES["multiplexed"](nodes, want, 0.0))
    return gang_size(nodes, replace(want, train_nodes=num_nodes, **wants), now, nodes[0]).num_nodes


@pytest.mark.parametrize(
    ("current", "ready", "size"),
    [(2, 10 + 19, 3), (2, 10 + 15, 2), (3, 10 + 15, 3), (3, 10 + 13, 2), (2, 10 + 2, 2), (3, 10 + 2, 2)],
)
def test_auto_takes_the_larger_gang_when_it_will_not_run_dry_and_stays_in_between(current, ready, size):
    """The ideal share is 2.29 of eight nodes. Three nodes need 1.33 batches waiting, so that there is one after their step."""
    rates = replace(MEASURED, step_nodes=current)
    assert sized(8, current=current, groups_ready=ready, rates=rates) == size


def test_auto_does_not_trust_a_measure_that_what_waits_contradicts():
    """Step after step waits for its batch: fewer nodes than the share. Batches pile up: more nodes."""
    dry = replace(MEASURED, waited=(0.5, 0.6))
    assert sized(8, groups_ready=10 + 2, rates=dry) == 1
    piled = replace(MEASURED, rollout_seconds=900.0)
    assert sized(8, groups_ready=10 + 38, rates=piled) == 2 and sized(8, groups_ready=10 + 12, rates=piled) == 1


def test_auto_decides_at_the_end_of_a_step():
    """In the middle of one everybody stays: who came now would stand idle until its end."""
    rates = replace(MEASURED, step_began_at=100.0, step_seconds=100.0)
    assert sized(8, now=120.0, groups_ready=40, rates=rates) == 2
    assert sized(8, now=147.0, groups_ready=40, rates=rates) == 3
    assert sized(8, now=99.0, groups_ready=40, rates=rates) == 2  # the journal's clock may be a second ahead
    assert sized(8, now=100.0 - 3600.0, groups_ready=40, rates=rates) == 3  # a clock that is an hour off is not believed


def test_auto_is_multiplexed_with_few_nodes_and_where_nothing_may_be_ahead():
    """Nothing to divide; or nothing to roll out during a step, so that as many train as may."""
    assert sized(2, current=2, rates=MEASURED) == 2
    assert sized(8, current=3, max_staleness=0, rates=MEASURED) == 8


@given(
    rollout=st.floats(0, 10_000) | st.just(0.0),
    train=st.floats(0, 10_000) | st.just(0.0),
    num_nodes=st.integers(3, 9),
    current=st.integers(1, 8),
    ready=st.integers(0, 60),
    most=st.integers(1, 9),
)
def test_auto_never_takes_more_than_may_train_and_leaves_somebody_to_roll_out(rollout, train, num_nodes, current, ready, most):
    """Whatever was measured, nothing or no time at all; and at most one node more or fewer than took the last step."""
    current = min(current, num_nodes)
    rates = replace(MEASURED, rollout_seconds=rollout, train_seconds=train, step_nodes=current)
    nodes = [both(f"n{number}") for number in range(num_nodes)]
    for _ in range(3):
        nodes = obey(nodes, POLICIES["multiplexed"](nodes, demand("auto", train_nodes=current, wants_train=True), 0.0))
    want = demand("auto", train_nodes=most, groups_ready=ready, rates=rates, wants_train=True)
    size = gang_size(nodes, want, 100.0, nodes[0]).num_nodes
    assert 1 <= size <= min(most, num_nodes - 1) or most == 1 == size
    assert abs(size - current) <= 1 or size == min(most, num_nodes - 1)


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    kinds=st.lists(st.sampled_from([(WORKER, TRAINER), (WORKER, TRAINER), (WORKER,), (TRAINER,)]), min_size=1, max_size=7),
    train_nodes=st.integers(1, 4),
    ready=st.integers(0, 30),
    wants_train=st.booleans(),
    measured=st.booleans(),
)
def test_with_the_same_wants_a_fleet_comes_to_rest(policy, kinds, train_nodes, ready, wants_train, measured):
    """No flapping: within a few looks nothing changes any more, each node changes its role at most three times, and every
    promise is kept on the way."""
    nodes = [node(f"n{at}", *services) for at, services in enumerate(kinds)]
    rates = replace(MEASURED, step_nodes=0) if measured else Rates()
    want = demand(policy, train_nodes=train_nodes, groups_ready=ready, wants_train=wants_train, rates=rates)
    changed = dict.fromkeys((each.name for each in nodes), 0)
    for look in range(8):
        assigned, wrong = checked_assignments(
            POLICIES[policy], nodes, replace(want, settled_epochs=settled(nodes)), 100.0 + look
        )
        assert wrong is None
        for each, assignment in zip(nodes, assigned, strict=True):
            changed[each.name] += each.lease is not None and each.lease.role is not assignment.role
            assert assignment.role is not Role.TRAIN or each.has("train")
        leads = [each for each in assigned if each.trainer and each.role is Role.TRAIN]
        for lead in leads:
            held = {each.name for each in nodes if TRAINER in each.holding}
            assert set(lead.gang[1:]) <= held and len(lead.gang) <= train_nodes
        nodes, before = obey(nodes, assigned, 100.0 + look), roles(assigned)
    assert roles(POLICIES[policy](nodes, replace(want, settled_epochs=settled(nodes)), 108.0)) == before
    assert max(changed.values()) <= 3
    able = any(each.has("rollout") for each in nodes) or (wants_train and any(each.has("train") for each in nodes))
    if able and policy != "disaggregated":
        assert set(before) - {"-"}, "some node rolls out or trains whenever something is alive and wanted"


def by_hand(fleet: list[Node], want: Demand, now: float) -> list[Assignment]:
    """A policy of one's own: everybody rolls out."""
    return [Assignment(each.name, want.run, Role.ROLLOUT, "as I like it", want.tags, each.name == "a") for each in fleet]


def two_trainers(fleet: list[Node], want: Demand, now: float) -> list[Assignment]:
    return [replace(each, trainer=True) for each in by_hand(fleet, want, now)]


def broken(fleet: list[Node], want: Demand, now: float) -> list[Assignment]:
    raise ZeroDivisionError("no steps")


def test_a_policy_of_ones_own_is_imported_and_held_to_its_promises():
    """What it gives counts; where it breaks a promise, or itself, roles stay as they are and the run reports the reason."""
    mine = policy_of(f"{__name__}:by_hand")
    assert roles(checked_assignments(mine, FOUR, demand(f"{__name__}:by_hand"), 0.0)[0]) == "rRRR"

    nodes = obey(FOUR, asked(FOUR, demand()))
    for name, text in (("two_trainers", "one node has the run's trainer"), ("broken", "ZeroDivisionError: no steps")):
        assigned, wrong = checked_assignments(policy_of(f"{__name__}:{name}"), nodes, demand(f"{__name__}:{name}"), 0.0)
        assert roles(assigned) == "rRRR" and wrong is not None and text in wrong and f"{__name__}:{name}" in wrong


@pytest.mark.parametrize(
    ("name", "text"),
    [("nowhere:at_all", "cannot import nowhere"), (f"{__name__}:missing", "has no missing"), ("plain", "or module:function")],
)
def test_a_policy_that_cannot_be_had_is_refused_with_the_reason(name, text):
    """So that the run is refused when it is requested, and not when its first batch is ready."""
    with pytest.raises(ConfigError, match=text):
        policy_of(name)
