"""Policies: what every one of them promises, over random fleets; then what each is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Role, Service
from seamlessflow_scheduler.fleet_state import HeldLease
from seamlessflow_scheduler.leases import next_lease
from seamlessflow_scheduler.policy import POLICIES, Assignment, Demand, Node, Process
from seamlessflow_scheduler.policy.colocated import RELEASE_SECONDS

WORKER, TRAINER = Service.ROLLOUT_WORKER.value, Service.TRAINER.value
CAPABILITY = {WORKER: "rollout", TRAINER: "train"}


def node(name: str, *services: str, gone: tuple[str, ...] = (), holding: tuple[str, ...] = ()) -> Node:
    """A node with these processes; those in ``gone`` are away for a moment."""
    made = {s: Process(frozenset({CAPABILITY[s]}), gone_since=1.0 if s in gone else None) for s in services}
    return Node(name, made, holding=frozenset(holding))


def both(name: str, **options: tuple[str, ...]) -> Node:
    return node(name, WORKER, TRAINER, **options)


def demand(policy: str, *, wants_train: bool = False) -> Demand:
    return Demand("r1", policy, wants_train)


def obey(nodes: list[Node], given_out: list[Assignment], now: float = 0.0) -> list[Node]:
    """The nodes once they do as they were told: who is to let go has let go."""
    by_name = {each.node: each for each in given_out}
    done = []
    for each in nodes:
        a = by_name[each.name]
        lease = next_lease(a, HeldLease(each.lease, 1, each.lease_since) if each.lease else None, now)
        holder = {Role.ROLLOUT: {WORKER}, Role.TRAIN: {TRAINER}}.get(a.role, set())
        done.append(replace(each, lease=lease, lease_since=now, holding=frozenset(holder & set(each.processes))))
    return done


def roles(policy: str, nodes: list[Node], *, wants_train: bool, now: float = 0.0) -> dict[str, Role]:
    return {a.node: a.role for a in POLICIES[policy](nodes, demand(policy, wants_train=wants_train), now)}


a_fleet = st.lists(
    st.tuples(st.sampled_from([(WORKER,), (TRAINER,), (WORKER, TRAINER)]), st.booleans(), st.booleans()), max_size=5
).map(
    lambda drawn: [
        node(f"n{at}", *services, gone=services[:1] if gone else (), holding=(WORKER,) if holds else ())
        for at, (services, gone, holds) in enumerate(drawn)
    ]
)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(nodes=a_fleet, wants=st.lists(st.booleans(), min_size=1, max_size=4))
def test_a_node_has_one_role_a_run_one_trainer_and_every_assignment_a_reason(policy, nodes, wants):
    """Whatever the fleet is and whatever happened before; and nothing changes while nothing changed."""
    for wants_train in wants:
        given_out = POLICIES[policy](nodes, demand(policy, wants_train=wants_train), 0.0)

        assert sorted(a.node for a in given_out) == [each.name for each in nodes]
        able = [each for each in nodes if each.has("train")]
        assert sum(a.trainer for a in given_out) == (1 if able else 0)
        assert all(a.trainer for a in given_out if a.role is Role.TRAIN)
        assert all(a.reason and a.run == "r1" for a in given_out)
        for a in given_out:
            can = next(each for each in nodes if each.name == a.node)
            assert a.role is not Role.ROLLOUT or can.has("rollout")
        before = {a.node: a.trainer for a in given_out}
        nodes = obey(nodes, given_out)
        assert before == {a.node: a.trainer for a in POLICIES[policy](nodes, demand(policy, wants_train=wants_train), 0.0)}


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(num_both=st.integers(1, 3), num_rollout=st.integers(0, 3))
def test_a_ready_batch_is_trained_and_after_the_step_there_is_rollout_again(policy, num_both, num_rollout):
    """RunProgress: obeying a few rounds of assignments leads to one node in TRAIN, and back."""
    nodes = [both(f"b{at}") for at in range(num_both)] + [node(f"r{at}", WORKER) for at in range(num_rollout)]
    if policy == "disaggregated" and len(nodes) < 2:
        return
    for wants_train in (False, True, False, True):
        for _ in range(3):
            nodes = obey(nodes, POLICIES[policy](nodes, demand(policy, wants_train=wants_train), 0.0))
        held = [each.lease.role for each in nodes if each.lease]
        assert held.count(Role.TRAIN) == (1 if wants_train or policy == "disaggregated" else 0)
        assert Role.ROLLOUT in held or (wants_train and (policy == "colocated" or len(nodes) == 1))


def test_multiplexed_on_one_machine_freezes_and_with_others_hands_back():
    """Alone, generations stay in the sleeping engine; beside another rollout node they go back to the queue."""
    alone = POLICIES["multiplexed"]([both("a")], demand("multiplexed", wants_train=True), 0.0)
    beside = POLICIES["multiplexed"]([both("a"), node("b", WORKER)], demand("multiplexed", wants_train=True), 0.0)

    assert (alone[0].role, alone[0].hand_back) == (Role.TRAIN, False)
    assert (beside[0].role, beside[0].hand_back, beside[1].role) == (Role.TRAIN, True, Role.ROLLOUT)


def test_multiplexed_gives_the_device_to_rollout_while_the_trainer_process_is_away():
    """A batch waits, but no process there could train on it; the node stays the trainer's."""
    given_out = POLICIES["multiplexed"]([both("a", gone=(TRAINER,))], demand("multiplexed", wants_train=True), 0.0)

    assert (given_out[0].role, given_out[0].trainer) == (Role.ROLLOUT, True)
    assert "away" in given_out[0].reason


def test_the_trainer_stays_where_it_is_when_a_better_node_joins():
    """A node that can only train would be preferred, but moving a trainer costs its steps."""
    first = obey([both("b")], POLICIES["multiplexed"]([both("b")], demand("multiplexed"), 0.0))
    given_out = POLICIES["multiplexed"]([node("a", TRAINER), *first], demand("multiplexed"), 0.0)

    assert {a.node: a.trainer for a in given_out} == {"a": False, "b": True}


def test_colocated_trains_only_when_all_others_let_go():
    """Strictly synchronous: told to stop, then waited for, then the step."""
    nodes = [both("a"), node("b", WORKER)]
    nodes = obey(nodes, POLICIES["colocated"](nodes, demand("colocated"), 0.0))
    assert roles("colocated", nodes, wants_train=True) == {"a": Role.IDLE, "b": Role.IDLE}

    told = obey(nodes, POLICIES["colocated"](nodes, demand("colocated", wants_train=True), 0.0))
    slow = [told[0], replace(told[1], holding=frozenset({WORKER}))]
    assert roles("colocated", slow, wants_train=True, now=1.0)["a"] is Role.IDLE
    assert roles("colocated", told, wants_train=True, now=1.0) == {"a": Role.TRAIN, "b": Role.IDLE}
    assert roles("colocated", slow, wants_train=True, now=RELEASE_SECONDS)["a"] is Role.TRAIN  # it died under its lease


def test_disaggregated_never_changes_and_refuses_a_single_node():
    """A fixed split; one node that could do both is told why it stays idle."""
    pair = [both("a"), both("b")]
    assert roles("disaggregated", pair, wants_train=False) == roles("disaggregated", pair, wants_train=True)
    assert roles("disaggregated", pair, wants_train=True) == {"a": Role.TRAIN, "b": Role.ROLLOUT}

    alone = POLICIES["disaggregated"]([both("a")], demand("disaggregated"), 0.0)
    assert alone[0].role is Role.IDLE and "add a node, or set policy to multiplexed" in alone[0].reason


def test_disaggregated_begins_no_rollout_before_its_trainer_is_known():
    """The worker of the trainer's node comes first, as it often does: it is not told to roll out and then to stop."""
    assert roles("disaggregated", [node("a", WORKER), node("b", WORKER)], wants_train=False) == {"a": Role.IDLE, "b": Role.IDLE}
    nodes = [node("a", WORKER), both("b")]
    assert roles("disaggregated", nodes, wants_train=False) == {"a": Role.ROLLOUT, "b": Role.TRAIN}

    begun = obey(nodes, POLICIES["disaggregated"](nodes, demand("disaggregated"), 0.0))
    left = [begun[0], replace(node("b", WORKER), lease=begun[1].lease)]
    assert roles("disaggregated", left, wants_train=False) == {"a": Role.ROLLOUT, "b": Role.IDLE}


def test_disaggregated_prefers_a_node_that_can_do_nothing_else():
    """Where one node can only train, no rollout node is given up for it."""
    assert roles("disaggregated", [both("a"), node("b", TRAINER)], wants_train=False) == {"a": Role.ROLLOUT, "b": Role.TRAIN}
