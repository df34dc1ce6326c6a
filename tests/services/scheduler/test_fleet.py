"""The fleet: who is there, whose each node is, how shards are shared, and which leases change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Lease, NodeStatus, Role
from seamlessflow_scheduler.fleet_state import FleetState, HeldLease, split_evenly
from seamlessflow_scheduler.leases import next_lease
from seamlessflow_scheduler.placement.plan import next_plan
from seamlessflow_scheduler.placement.run_allocation import allocate
from seamlessflow_scheduler.policy import Assignment, Demand, Node

WORKER, TRAINER, RUNNER, MANAGER = "rollout-worker", "trainer", "agent-runner", "trajectory-manager"
CAPABILITY = {WORKER: ("rollout",), TRAINER: ("train",), RUNNER: ("serve",), MANAGER: ("serve",)}


def status(node: str, service: str) -> NodeStatus:
    return NodeStatus(node=node, service=service, instance="i", capabilities=CAPABILITY[service], pid=1)


MACHINE = [status("gpu", WORKER), status("gpu", TRAINER), status("agents", RUNNER), status("trees", MANAGER)]


def machine(mark: str) -> list[NodeStatus]:
    return [each.model_copy(update={"node": f"{each.node}-{mark}"}) for each in MACHINE]


class Sim:
    """A fleet whose leases are written as planned."""

    def __init__(self, grace_seconds: float = 10.0) -> None:
        self.fleet, self.leases, self.now = FleetState(grace_seconds), dict[str, HeldLease](), 0.0

    def nodes(self) -> list[Node]:
        return self.fleet.nodes(self.leases, {})

    def tick(self, statuses: list[NodeStatus], *demands: Demand, after: float = 1.0) -> tuple[dict[str, Lease], dict[str, str]]:
        """Time passes, the plan is carried out; returns the leases and what each run waits for."""
        self.now += after
        self.look(statuses)
        plan = next_plan(self.nodes(), self.leases, demands, self.now)
        while changes := next_plan(self.nodes(), self.leases, demands, self.now).changes:  # shards are taken, then given
            assert all(a in plan.changes or a.role is Role.SERVE for a in changes), "a plan that was carried out must stand"
            self.write(changes)
            self.look(statuses)
        return {name: held.lease for name, held in self.leases.items()}, {r: "; ".join(w) for r, w in plan.waits.items()}

    def look(self, statuses: list[NodeStatus]) -> None:
        """Everybody who is there obeys the lease that stands."""
        obeyed = {name: {"epoch": held.lease.epoch, "run": held.lease.run} for name, held in self.leases.items()}
        self.fleet.observe([s.model_copy(update=obeyed.get(s.node, {})) for s in statuses], self.now)

    def write(self, changes: Sequence[Assignment]) -> None:
        for a in changes:
            lease = next_lease(a, self.leases.get(a.node), self.now)
            self.leases[a.node] = HeldLease(lease, lease.epoch, self.now)


def demand(run: str, *, policy: str = "multiplexed", num_shards: int = 2) -> Demand:
    return Demand(run, policy, envs=("single", "check"), num_shards=num_shards)


def test_one_machine_serves_one_run_completely():
    """Device to rollout with the trainer in the run, the runner with all environments, the manager with all shards."""
    leases, waits = Sim().tick(MACHINE, demand("r1"))

    assert (leases["gpu"].role, leases["gpu"].trainer, leases["gpu"].tags) == (Role.ROLLOUT, True, ("rollout",))
    assert (leases["agents"].role, leases["agents"].tags) == (Role.SERVE, ("single", "check"))
    assert (leases["trees"].role, leases["trees"].tags) == (Role.SERVE, ("0", "1"))
    assert waits == {"r1": ""}


def test_what_is_missing_is_said():
    """A run without trainer and agent-runner reports that, and the rest is leased already."""
    leases, waits = Sim().tick([status("gpu", WORKER), status("trees", MANAGER)], demand("r1"))

    assert waits["r1"] == "no agent-runner; no node with capability train"
    assert leases["gpu"].role is Role.ROLLOUT


def test_a_second_run_waits_for_the_first_and_then_gets_its_nodes():
    """One machine: the queued run names the run whose nodes it waits for; epochs go on growing."""
    sim = Sim()
    _, waits = sim.tick(MACHINE, demand("r1"), demand("r2"))
    assert "no node with capability train free: run r1 has them" in waits["r2"]

    leases, waits = sim.tick(MACHINE, demand("r2"))
    assert {lease.run for lease in leases.values()} == {"r2"} and waits == {"r2": ""}
    assert {lease.epoch for lease in leases.values()} == {2}


def test_two_runs_share_a_fleet_that_is_large_enough():
    """The first run holds two machines; the second takes what the first can spare, all of it or nothing."""
    sim = Sim()
    sim.tick([*machine("a"), *machine("b")], demand("r1"))
    leases, waits = sim.tick([*machine("a"), *machine("b")], demand("r1"), demand("r2"))

    assert waits == {"r1": "", "r2": ""}
    assert sorted(lease.run or "" for lease in leases.values()) == ["r1"] * 3 + ["r2"] * 3
    assert sum(lease.trainer for lease in leases.values()) == 2


def test_a_second_run_takes_nothing_when_it_would_stay_incomplete():
    """Two runs never hold what the other waits for."""
    sim = Sim()
    sim.tick([*machine("a"), status("extra", RUNNER)], demand("r1"))
    leases, _ = sim.tick([*machine("a"), status("extra", RUNNER)], demand("r1"), demand("r2"))

    assert {lease.run for lease in leases.values()} == {"r1"}


def test_a_restart_moves_nothing_and_a_node_that_stays_away_loses_its_lease():
    """Within the grace roles are kept, also the shards of a manager when no other could take them; then all is taken back."""
    sim = Sim(grace_seconds=10.0)
    everyone = [*MACHINE, status("agents2", RUNNER)]
    before, _ = sim.tick(everyone, demand("r1"))
    without = [each for each in everyone if each.node in ("gpu", "agents")]

    during, _ = sim.tick(without, demand("r1"), after=5.0)
    assert during == before
    after, _ = sim.tick(without, demand("r1"), after=11.0)
    for name in ("agents2", "trees"):
        assert (after[name].run, after[name].role, after[name].reason) == (None, Role.IDLE, "the node is gone")


def test_a_trainer_that_stays_away_is_replaced_by_another_node():
    """While it may come back it keeps its place; then the next node that can train gets it."""
    sim = Sim(grace_seconds=10.0)
    sim.tick([*MACHINE, status("gpu2", WORKER), status("gpu2", TRAINER)], demand("r1"))
    there = [s for s in MACHINE if s.node != "gpu"] + [status("gpu", WORKER), status("gpu2", WORKER), status("gpu2", TRAINER)]

    leases, _ = sim.tick(there, demand("r1"), after=5.0)
    assert leases["gpu"].trainer and not leases["gpu2"].trainer
    leases, _ = sim.tick(there, demand("r1"), after=11.0)
    assert leases["gpu2"].trainer and not leases["gpu"].trainer


def test_a_new_scheduler_keeps_leases_of_nodes_it_has_not_seen_yet():
    """It reads the leases; nodes that restart together with it get their grace."""
    sim = Sim()
    before, _ = sim.tick(MACHINE, demand("r1"))
    later = Sim()
    later.leases, later.now = sim.leases, sim.now
    later.fleet.remember(before, later.now)

    after, waits = later.tick([], demand("r1"))
    assert after == before and waits == {"r1": ""}


def test_a_disaggregated_run_on_one_node_says_that_it_needs_two():
    """The clear refusal: it waits with that reason, and a second node is all it needs."""
    sim = Sim()
    leases, waits = sim.tick(MACHINE, demand("r1", policy="disaggregated"))
    assert leases["gpu"].role is Role.IDLE and "needs a node that trains and another" in waits["r1"]

    leases, waits = sim.tick([*MACHINE, status("gpu2", WORKER)], demand("r1", policy="disaggregated"))
    assert (leases["gpu"].role, leases["gpu2"].role, waits["r1"]) == (Role.TRAIN, Role.ROLLOUT, "")


def test_after_the_last_run_every_lease_is_released():
    """No node keeps working for a run that is over."""
    sim = Sim()
    sim.tick(MACHINE, demand("r1"))
    leases, _ = sim.tick(MACHINE)

    assert {(lease.run, lease.role) for lease in leases.values()} == {(None, Role.IDLE)}


@given(
    num_shards=st.integers(1, 20),
    held=st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(0, 19)), min_size=1),
)
def test_shards_are_split_evenly_each_to_one_manager(num_shards, held):
    """Every shard has exactly one manager, and no manager has two more than another."""
    split = split_evenly(num_shards, held)

    assert sorted(shard for shards in split.values() for shard in shards) == list(range(num_shards))
    assert max(map(len, split.values())) - min(map(len, split.values())) <= 1


def test_every_affinity_bucket_has_one_owner_that_rolls_out_and_comes_back_to_it_from_training():
    """As even as can be; who trains owns none meanwhile, and what others have moves no more than it must."""
    sim = Sim()
    fleet = [status(name, WORKER) for name in "abd"] + [status("b", TRAINER), status("r", RUNNER), status("m", MANAGER)]
    want = Demand("r1", "multiplexed", envs=("single",), num_buckets=9)
    leases, _ = sim.tick(fleet, want)
    before = {name: lease.buckets for name, lease in leases.items() if lease.buckets}

    assert sorted(bucket for buckets in before.values() for bucket in buckets) == list(range(9))
    assert {name: len(buckets) for name, buckets in before.items()} == {"a": 3, "b": 3, "d": 3}

    leases, _ = sim.tick(fleet, replace(want, wants_train=True))
    assert leases["b"].role is Role.TRAIN and leases["b"].buckets == ()
    meanwhile = {name: lease.buckets for name, lease in leases.items() if lease.buckets}
    assert sorted(bucket for buckets in meanwhile.values() for bucket in buckets) == list(range(9))
    assert all(set(before[name]) < set(buckets) for name, buckets in meanwhile.items())

    leases, _ = sim.tick(fleet, want)
    assert {name: lease.buckets for name, lease in leases.items() if lease.buckets} == before


def test_who_changes_roles_gets_its_lease_before_those_whose_buckets_change():
    """A device that waits costs more than a cache; the trainer's is last of the former, as ever."""
    sim = Sim()
    fleet = [status(name, WORKER) for name in "abd"] + [status("b", TRAINER), status("r", RUNNER), status("m", MANAGER)]
    want = Demand("r1", "multiplexed", envs=("single",), num_buckets=9)
    sim.tick(fleet, want)
    plan = next_plan(sim.nodes(), sim.leases, [replace(want, wants_train=True)], sim.now)

    assert [(each.node, each.role) for each in plan.changes] == [
        ("b", Role.TRAIN), ("a", Role.ROLLOUT), ("d", Role.ROLLOUT)
    ]  # fmt: skip


def test_with_fewer_buckets_than_workers_all_own_all():
    """One bucket and two workers: neither is a mere backup that gets what the other has no room for."""
    leases, _ = Sim().tick([*MACHINE, status("gpu2", WORKER)], demand("r1"))

    assert (leases["gpu"].buckets, leases["gpu2"].buckets) == ((0,), (0,))


def test_a_node_that_trains_for_the_whole_run_owns_no_bucket():
    """Although its worker could roll out: its cache would serve no generation."""
    fleet = [*MACHINE, status("gpu2", WORKER), status("gpu3", WORKER)]
    leases, _ = Sim().tick(fleet, Demand("r1", "disaggregated", envs=("single",), num_buckets=2))
    trainer = next(name for name, lease in leases.items() if lease.trainer)

    assert leases[trainer].buckets == ()
    assert sorted(b for lease in leases.values() for b in lease.buckets) == [0, 1]


@given(num_shards=st.integers(1, 20), num_managers=st.integers(1, 6))
def test_shards_stay_where_they_are_and_move_as_few_as_can_be(num_shards, num_managers):
    """Splitting again changes nothing; losing a manager moves only its shards."""
    split = split_evenly(num_shards, {f"m{n}": () for n in range(num_managers)})
    assert split_evenly(num_shards, split) == split

    left = {name: shards for name, shards in split.items() if name != "m0"}
    after = split_evenly(num_shards, left)
    assert all(set(shards) <= set(after[name]) for name, shards in left.items())


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.sampled_from([WORKER, TRAINER, RUNNER, MANAGER]), st.sampled_from([None, "r1", "r2"])
        ),
        max_size=12,
    )
)
def test_every_node_serves_at_most_one_run_and_only_one_there_is(drawn):
    """Whatever leases an earlier time left behind; and no run takes a node on which another depends."""
    fleet = FleetState(10.0)
    fleet.observe([status(node, service) for node, service, _ in drawn], 0.0)
    leases = {n: HeldLease(Lease(run=run, role=Role.IDLE, epoch=1), 1, 0.0) for n, _, run in drawn if run}
    demands = [demand("r1"), demand("r3")]
    nodes = fleet.nodes(leases, {})
    given_out = allocate(nodes, demands)

    assert set(given_out.run_of) == {node.name for node in nodes}
    assert set(given_out.run_of.values()) <= {None, "r1", "r3"}
    had = allocate(nodes, demands[:1])
    if not had.lacks["r1"]:
        assert not given_out.lacks["r1"]
