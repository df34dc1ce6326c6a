"""Shards: each with one manager that may act on it, also while managers come, go, stand still and dawdle; and who is silent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import Lease, Role, Service
from seamlessflow.contracts.base import partition
from seamlessflow_scheduler.fleet_monitor import HeartbeatMonitor
from seamlessflow_scheduler.placement.shards import RELEASE_SECONDS, share
from seamlessflow_scheduler.policy import Demand, Node, Process

MANAGER = Service.TRAJECTORY_MANAGER.value
DEMAND = Demand("r1", "multiplexed", num_shards=6)
OTHER = Demand("r2", "multiplexed", num_shards=4)
DEMANDS = (DEMAND, OTHER)


@dataclass
class Peer:
    """A manager process: what it acts on, and which lease it obeys."""

    is_up: bool = True
    is_quiet: bool = False
    epoch: int = 0
    acts_on: frozenset[int] = frozenset()
    """Shards of ``run``."""
    run: str | None = None
    serves: str = DEMAND.run
    """The run that it is allocated to."""
    lease: Lease | None = None
    lease_since: float = 0.0

    def obey(self) -> None:
        """Leave first, then publish that; only then join."""
        if self.is_up and not self.is_quiet and self.lease is not None:
            self.epoch, self.acts_on, self.run = self.lease.epoch, frozenset(map(int, self.lease.tags)), self.lease.run


@dataclass
class Peers:
    """Managers by name, and a scheduler that shares the shards among them."""

    now: float = 0.0
    peers: dict[str, Peer] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        return [
            Node(
                name,
                {MANAGER: Process(frozenset(), None if peer.is_up else 0.0, peer.is_quiet, peer.epoch, peer.run)},
                peer.lease,
                peer.lease_since,
            )
            for name, peer in sorted(self.peers.items())
        ]

    def tick(self, after: float = 0.5) -> None:
        self.now += after
        everyone = self.nodes()
        for demand in DEMANDS:
            mine = [node for node in everyone if self.peers[node.name].serves == demand.run]
            for name, shards in share(mine, everyone, demand, self.now).items():
                self._write(self.peers[name], demand.run, tuple(map(str, shards)))

    def _write(self, peer: Peer, run: str, tags: tuple[str, ...]) -> None:
        if peer.lease is None or (peer.lease.run, peer.lease.tags) != (run, tags):
            epoch = peer.lease.epoch + 1 if peer.lease is not None else 1
            peer.lease, peer.lease_since = Lease(run=run, role=Role.SERVE, tags=tags, epoch=epoch), self.now

    def leased(self, run: str = DEMAND.run) -> list[str]:
        leases = [peer.lease for peer in self.peers.values() if peer.lease is not None and peer.lease.run == run]
        return sorted(tag for lease in leases for tag in lease.tags)

    def tags(self) -> dict[str, tuple[str, ...]]:
        return {name: peer.lease.tags for name, peer in self.peers.items() if peer.lease is not None}

    def settle(self) -> None:
        """Everybody obeys until nothing changes."""
        for _ in range(6):
            self.tick()
            for peer in self.peers.values():
                peer.obey()


ALL = [str(shard) for shard in range(DEMAND.num_shards)]
happenings = st.sampled_from(["up", "kill", "freeze", "wake", *["obey"] * 3, "move", *["tick"] * 3])
steps = st.lists(st.tuples(st.sampled_from("abc"), happenings), max_size=40)


@settings(max_examples=300)
@given(there=st.sets(st.sampled_from("abc")), drawn=steps)
def test_no_two_managers_that_are_awake_ever_act_on_one_shard(there, drawn):
    """Whatever they do and in whatever order, also while they are given to another run: a shard is given only when no manager
    else can still act on it."""
    world = Peers(peers={name: Peer() for name in there})
    world.settle()
    for name, what in drawn:
        peer = world.peers.setdefault(name, Peer())
        if what == "up" and not peer.is_up:
            world.peers[name] = Peer(lease=peer.lease, lease_since=peer.lease_since, serves=peer.serves)
        elif what == "kill":
            world.peers[name] = Peer(is_up=False, lease=peer.lease, lease_since=peer.lease_since, serves=peer.serves)
        elif what in ("freeze", "wake"):
            # Who stood still judges nothing before it has read its lease again.
            peer.is_quiet, peer.acts_on = what == "freeze", frozenset()
        elif what == "obey":
            peer.obey()
        elif what == "move":
            peer.serves = OTHER.run if peer.serves == DEMAND.run else DEMAND.run
        else:
            world.tick(0.1)
        for demand in DEMANDS:
            leased = world.leased(demand.run)
            assert len(set(leased)) == len(leased), "a shard is in two leases"
        acting = [(each.run, shard) for each in world.peers.values() if not each.is_quiet for shard in each.acts_on]
        assert len(set(acting)) == len(acting), "two managers act on one shard"

    for peer in world.peers.values():
        peer.is_up, peer.is_quiet = True, False
    if world.peers:
        world.settle()
    for demand in DEMANDS:
        counts = [len(peer.acts_on) for peer in world.peers.values() if peer.serves == demand.run]
        if counts:
            assert len(world.leased(demand.run)) == sum(counts) == demand.num_shards and max(counts) - min(counts) <= 1


def two() -> Peers:
    world = Peers(peers={"a": Peer(), "b": Peer()})
    world.settle()
    return world


def test_a_new_manager_gets_shards_only_when_the_old_one_has_let_go_of_them():
    """It loads the model; then some are in no lease; then they are in its own. What does not move stays where it is."""
    world = two()
    before = world.tags()
    world.peers["c"] = Peer()
    world.tick()
    assert world.tags() == {**before, "c": ()}
    world.peers["c"].obey()
    for _ in range(2):
        world.tick()
        assert world.tags()["c"] == () and len(world.leased()) == 4
    world.settle()
    after = world.tags()
    assert len(after["c"]) == 2 and all(set(after[name]) < set(before[name]) for name in before)


def test_the_shards_of_a_manager_that_another_run_takes_are_given_when_it_has_let_go():
    """It acts on them until it obeys its new lease; first they are in no lease."""
    world = two()
    world.peers["a"].serves = OTHER.run
    kept = world.tags()["b"]
    for _ in range(3):
        world.tick()
        assert world.tags()["b"] == kept and world.leased() == sorted(kept)
    world.peers["a"].obey()
    world.tick()
    assert world.leased() == ALL and world.tags()["b"] == tuple(ALL)


def test_a_manager_that_does_not_let_go_is_not_waited_for_for_ever():
    """It is there and hangs; late events are published once or not at all."""
    world = two()
    world.peers["c"] = Peer(run="r1")
    world.tick()
    world.tick(RELEASE_SECONDS + 0.1)
    assert world.leased() == ALL


def test_the_shards_of_a_silent_manager_are_taken_at_one_look_and_given_at_the_next():
    """So one that woke up in between is seen."""
    world = two()
    world.peers["a"].is_quiet = True
    world.tick()
    assert world.leased() == ["1", "3", "5"] and world.peers["a"].lease is not None
    woken = replace(world.peers["a"], is_quiet=False)
    world.tick()
    assert world.leased() == ALL and world.peers["b"].lease is not None and len(world.peers["b"].lease.tags) == 6

    world.peers["a"] = woken
    world.settle()
    assert {name: len(peer.acts_on) for name, peer in world.peers.items()} == {"a": 3, "b": 3}


def test_while_no_manager_is_there_all_keep_their_shards():
    """They may be restarting, with the whole machine or alone."""
    world = two()
    before = world.leased()
    for peer in world.peers.values():
        peer.is_up = False
    world.tick()
    assert world.leased() == before == ALL


def pulse_of(*looks: tuple[float, dict[str, int]]) -> list[set[str]]:
    pulse = HeartbeatMonitor(2.0)
    return [{node for node, _ in pulse.observe({(n, MANAGER): r for n, r in seen.items()}, now)} for now, seen in looks]


def test_a_process_that_does_not_renew_is_silent_and_one_that_does_is_not():
    """After the time, and no longer than until its next renewal."""
    revisions = [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 1}, {"a": 4, "b": 2}]
    assert pulse_of(*zip([10.0, 11.0, 12.0, 13.0], revisions, strict=True)) == [set(), set(), {"b"}, set()]


def test_time_in_which_nobody_looked_makes_nobody_silent():
    """The server was away, or this scheduler stood still: all have their time again."""
    assert pulse_of((10.0, {"a": 1}), (11.0, {"a": 1}), (31.0, {"a": 1}), (32.0, {"a": 1}), (33.0, {"a": 1})) == [
        set(), set(), set(), set(), {"a"},
    ]  # fmt: skip


@given(prefix=st.from_regex(r"[a-z]{1,6}-?", fullmatch=True), count=st.sampled_from([2, 4, 8]))
def test_episodes_whose_ids_differ_in_a_digit_are_spread_over_all_shards(prefix, count):
    """Groups are numbered, and so are their episodes: a checksum left whole shards of them empty."""
    shards = [partition(f"g-{prefix}{task}-{index}-0", count) for task in range(16) for index in range(8)]
    assert set(shards) == set(range(count))
