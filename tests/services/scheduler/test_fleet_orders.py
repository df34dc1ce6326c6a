"""What people order of nodes by hand, and what tags, rules and hung processes make of them. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.tag_rules import parse_rule
from seamlessflow.contracts import Hardware, Lease, NodeOrder, NodeStatus, Role
from seamlessflow_scheduler.fleet_state import STUCK_SECONDS, FleetState, HeldLease
from seamlessflow_scheduler.policy import Demand
from seamlessflow_scheduler.policy.base import trainer_of
from tests.services.scheduler.test_fleet import MACHINE, MANAGER, RUNNER, TRAINER, WORKER, Sim, demand, machine, status

TWO = [*MACHINE, status("gpu2", WORKER), status("gpu2", TRAINER), status("trees2", MANAGER)]


class Ordered(Sim):
    """A fleet of which something is ordered by hand."""

    orders: dict[str, NodeOrder] = {}

    def look(self, statuses: list[NodeStatus]) -> None:
        self.fleet.observe([], self.now, orders=self.orders)
        super().look(statuses)


def ordered(**orders: NodeOrder) -> Ordered:
    sim = Ordered()
    sim.orders = orders
    return sim


DRAINED = NodeOrder(drain=True)


def test_a_drained_node_hands_back_what_it_has_and_gets_nothing_until_the_order_is_undone():
    """Its lease names no run and gives the reason, and its generations go to others; afterwards it is a node like any other."""
    sim = ordered()
    sim.tick(TWO, demand("r1"))
    sim.orders = {"gpu2": DRAINED}
    leases, waits = sim.tick(TWO, demand("r1"))
    drained = leases["gpu2"]

    assert (drained.run, drained.role, drained.hand_back, drained.reason) == (None, Role.IDLE, True, "drained by hand")
    assert leases["gpu"].role is Role.ROLLOUT and waits == {"r1": ""}
    assert sim.tick(TWO, demand("r1"))[0]["gpu2"].epoch == drained.epoch, "no further lease is written"

    sim.orders = {"gpu2": NodeOrder()}
    assert sim.tick(TWO, demand("r1"))[0]["gpu2"].role is Role.ROLLOUT


def test_a_drained_trainer_gives_its_place_to_another_node():
    """And where there is none, the run reports how to get it back."""
    sim = ordered()
    before, _ = sim.tick(TWO, demand("r1"))
    trainer = next(name for name, lease in before.items() if lease.trainer)
    sim.orders = {trainer: DRAINED}
    leases, waits = sim.tick(TWO, demand("r1"))
    assert [name for name, lease in leases.items() if lease.trainer] == [next(n for n in ("gpu", "gpu2") if n != trainer)]

    sim.orders = {"gpu": DRAINED, "gpu2": DRAINED}
    _, waits = sim.tick(TWO, demand("r1"))
    assert "no node with capability train; node gpu is drained (seamlessflow drain --undo gpu)" in waits["r1"]


def test_a_drained_manager_loses_its_shards_to_the_others_and_never_before_it_has_let_go():
    """As when it is taken from it for any other reason."""
    sim = ordered()
    leases, _ = sim.tick(TWO, demand("r1", num_shards=4))
    leases, _ = sim.tick(TWO, demand("r1", num_shards=4))
    assert sorted(leases["trees"].tags + leases["trees2"].tags) == ["0", "1", "2", "3"] and leases["trees2"].tags
    sim.orders = {"trees2": DRAINED}
    leases, _ = sim.tick(TWO, demand("r1", num_shards=4))

    assert leases["trees2"].run is None and leases["trees"].tags == ("0", "1", "2", "3")


def test_an_order_outlives_the_absence_of_its_node():
    """It stands until people change it, also over a new scheduler, which reads it from the bucket."""
    sim = ordered(gpu2=DRAINED)
    sim.tick(MACHINE, demand("r1"))
    leases, _ = sim.tick(TWO, demand("r1"))

    assert "gpu2" not in leases, "it came back and is still drained"


@pytest.mark.parametrize(
    ("removed", "text"),
    [
        ("train", "no node with capability train; node gpu lacks train (seamlessflow tag gpu train)"),
        ("rollout", "no node with capability rollout; node gpu lacks rollout (seamlessflow tag gpu rollout)"),
    ],
)
def test_a_role_that_was_taken_away_by_hand_is_missed_by_name(removed, text):
    """With what a person would type to give it back."""
    _, waits = ordered(gpu=NodeOrder(remove=(removed,))).tick(MACHINE, demand("r1"))

    assert waits["r1"] == text


def test_a_node_whose_roles_are_all_taken_away_is_let_go_of_with_that_reason():
    """It is no drained one, and the run is not over."""
    sim = ordered()
    sim.tick(TWO, demand("r1"))
    sim.orders = {"gpu2": NodeOrder(remove=("rollout", "train"))}
    leases, _ = sim.tick(TWO, demand("r1"))

    assert leases["gpu2"].run is None and "taken away by hand: rollout, train" in leases["gpu2"].reason


def test_a_role_that_no_process_can_play_cannot_be_given_by_hand():
    """An order makes no trainer of a rollout-worker."""
    sim = ordered(gpu=NodeOrder(add=("train",)))
    leases, waits = sim.tick([status("gpu", WORKER), status("agents", RUNNER), status("trees", MANAGER)], demand("r1"))

    assert waits["r1"] == "no node with capability train" and not leases["gpu"].trainer


def tagged(run: str = "r1", *tags: str, **more) -> Demand:
    return Demand(run, "multiplexed", envs=("single",), tags=tags or ("h800+rollout", "rollout"), **more)


def test_a_tag_that_nobody_has_is_said_with_who_could_have_it():
    """And what a person would type; the rest of the run has its nodes."""
    leases, waits = Sim().tick(MACHINE, tagged())

    assert waits["r1"] == "tag h800+rollout: no node has it; node gpu has rollout and lacks h800 (seamlessflow tag gpu h800)"
    assert leases["gpu"].tags == ("rollout",)


def test_a_tag_given_by_hand_is_served_and_one_taken_away_is_not():
    """The lease names exactly the work tags that the node has all components of."""
    sim = ordered(gpu=NodeOrder(add=("h800",)))
    leases, waits = sim.tick(MACHINE, tagged())
    assert leases["gpu"].tags == ("h800+rollout", "rollout") and waits == {"r1": ""}

    sim.orders = {"gpu": NodeOrder()}
    leases, waits = sim.tick(MACHINE, tagged())
    assert leases["gpu"].tags == ("rollout",) and "tag h800+rollout" in waits["r1"]


def test_an_announced_tag_can_be_taken_away():
    """Whoever started the process is overruled by who operates the fleet."""
    h800 = status("gpu", WORKER).model_copy(update={"capabilities": ("rollout", "h800")})
    sim = ordered()
    leases, _ = sim.tick([h800, *MACHINE[1:]], tagged())
    assert "h800+rollout" in leases["gpu"].tags

    sim.orders = {"gpu": NodeOrder(remove=("h800",))}
    assert sim.tick([h800, *MACHINE[1:]], tagged())[0]["gpu"].tags == ("rollout",)


def test_a_node_without_any_tag_of_the_run_idles_and_says_what_it_lacks():
    """It takes no device for work that never comes to it; it may still train."""
    leases, _ = Sim().tick([*MACHINE, status("gpu2", WORKER)], tagged("r1", "h800+rollout"))

    assert leases["gpu2"].role is Role.IDLE and leases["gpu2"].reason == "nothing of the run is for it: it lacks h800"


def test_hints_name_the_nearest_nodes_and_count_the_rest():
    """A fleet of a hundred nodes is no list of a hundred commands."""
    sim = ordered(n7=NodeOrder(add=("h800",)), n8=NodeOrder(drain=True, add=("big", "h800")))
    many = [status(f"n{number}", WORKER) for number in range(10)]
    _, waits = sim.tick([*MACHINE, *many], tagged("r1", "big+h800+rollout", "rollout"))

    assert waits["r1"] == (
        "tag big+h800+rollout: no node has it; node n8 is drained (seamlessflow drain --undo n8); "
        "node n7 has h800 and rollout and lacks big (seamlessflow tag n7 big)"
    )
    _, waits = Sim().tick([*MACHINE, *many], tagged("r1", "big+rollout", "rollout"))
    assert waits["r1"].count("seamlessflow tag") == 3 and waits["r1"].endswith("and 8 more like these")


def test_a_second_run_gets_the_node_with_its_tag_or_says_who_has_it():
    """Runs wait for tags as they wait for trainers."""
    h800 = status("gpu-b", WORKER).model_copy(update={"capabilities": ("rollout", "h800")})
    fleet = [*machine("a"), *[each for each in machine("b") if each.service != WORKER], h800]
    sim = Sim()
    sim.tick(fleet, tagged("r1", "h800+rollout"))
    _, waits = sim.tick(fleet, tagged("r1", "h800+rollout"), tagged("r2", "h800+rollout"))

    assert "tag h800+rollout: no node that has it is free: run r1 has them" in waits["r2"]


def test_hardware_gives_a_tag_by_rule():
    """Prefill-heavy work to compute-rich nodes is a rule of the run, and a person's word comes before it."""
    rule = (("prefill", parse_rule("flops/bandwidth > 250")),)
    rich = status("gpu", WORKER).model_copy(update={"hardware": Hardware(flops=990e12, bandwidth_bytes=3.35e12)})
    want = tagged("r1", "prefill+rollout", "rollout", tag_rules=rule)
    sim = ordered()
    leases, _ = sim.tick([rich, *MACHINE[1:], status("gpu2", WORKER)], want)
    assert (leases["gpu"].tags, leases["gpu2"].tags) == (("prefill+rollout", "rollout"), ("rollout",))

    sim.orders = {"gpu": NodeOrder(remove=("prefill",)), "gpu2": NodeOrder(add=("prefill",))}
    leases, _ = sim.tick([rich, *MACHINE[1:], status("gpu2", WORKER)], want)
    assert (leases["gpu"].tags, leases["gpu2"].tags) == (("rollout",), ("prefill+rollout", "rollout"))


def test_an_agent_runner_runs_the_environments_whose_needs_it_has():
    """A browser is a tag of a node like any other."""
    want = Demand("r1", "multiplexed", envs=("plain", "web"), needs={"web": "browser"})
    leases, waits = Sim().tick(MACHINE, want)
    assert leases["agents"].tags == ("plain",) and "web" in leases["agents"].reason
    assert waits["r1"] == "tag browser: no agent-runner has it; node agents lacks browser (seamlessflow tag agents browser)"

    leases, waits = ordered(agents=NodeOrder(add=("browser",))).tick(MACHINE, want)
    assert leases["agents"].tags == ("plain", "web") and waits == {"r1": ""}


def test_every_bucket_of_every_tag_has_one_owner_among_those_who_have_the_tag():
    """Affinity holds for each kind of work, whoever else is in the run."""
    h800 = [status(name, WORKER).model_copy(update={"capabilities": ("rollout", "h800")}) for name in ("x", "y")]
    others = [status(name, WORKER) for name in ("u", "v", "w")]
    want = tagged("r1", "h800+rollout", "rollout", num_buckets=8)
    leases, _ = Sim().tick([*h800, *others, status("t", TRAINER), *MACHINE[2:]], want)

    of_tag = {name: [b for b in lease.buckets if b < 8] for name, lease in leases.items()}
    plain = {name: [b - 8 for b in lease.buckets if b >= 8] for name, lease in leases.items()}
    assert sorted(of_tag["x"] + of_tag["y"]) == list(range(8)) and len(of_tag["x"]) == 4
    assert sorted(b for buckets in plain.values() for b in buckets) == list(range(8))
    assert not any(of_tag[name] for name in "uvw") and {len(plain[name]) for name in "uvwxy"} <= {1, 2}


def test_a_lent_node_is_named_so_in_its_lease():
    """Its pulls come after those of nodes that stay; what it owns it keeps."""
    leases, _ = Sim().tick(TWO, demand("r1"))

    assert {name: lease.lent for name, lease in leases.items() if lease.trainer} == {"gpu": True}
    assert not leases["gpu2"].lent


def test_a_fleet_that_cannot_train_rolls_out_and_says_what_is_missing():
    """Within the staleness bound; nothing crashes, and a trainer may come any time."""
    fleet = [status("gpu", WORKER), status("gpu2", WORKER), *MACHINE[2:]]
    leases, waits = Sim().tick(fleet, demand("r1"))

    assert waits["r1"] == "no node with capability train"
    assert {leases[name].role for name in ("gpu", "gpu2")} == {Role.ROLLOUT}


@given(st.lists(st.booleans(), min_size=4, max_size=40))
def test_a_node_that_flaps_within_the_grace_changes_nothing(comes):
    """Roles stay as they are, as long as it is never away for longer than a restart may take."""
    sim, away = Sim(grace_seconds=10.0), 0
    before, _ = sim.tick(TWO, demand("r1"))
    without = [each for each in TWO if each.node != "gpu2"]
    for there in comes:
        away = 0 if there or away >= 3 else away + 1
        leases, _ = sim.tick(without if away else TWO, demand("r1"), after=3.0)
        assert leases == before


@given(slots=st.integers(-(2**31), 2**31), facts=st.dictionaries(st.text(max_size=5), st.integers()))
def test_what_a_node_says_of_its_slots_decides_nothing(slots, facts):
    """It pulls what it has room for; a lie costs it at most what is in its own hands."""
    lying = [each.model_copy(update={"slots": slots, "facts": facts}) for each in TWO]

    assert Sim().tick(lying, demand("r1")) == Sim().tick(TWO, demand("r1"))


def test_a_node_that_has_fallen_silent_is_not_chosen_as_the_trainer():
    """While there is another; one that has the place already keeps it for as long as it is expected back."""
    fleet = FleetState(10.0)
    fleet.observe(TWO, 0.0, quiet=[("gpu", WORKER)])
    chosen = trainer_of(fleet.nodes({}, {}), "r1")
    assert chosen is not None and chosen.name == "gpu2"

    held = {"gpu": HeldLease(Lease(run="r1", role=Role.ROLLOUT, epoch=1, trainer=True), 1, 0.0)}
    chosen = trainer_of(fleet.nodes(held, {}), "r1")
    assert chosen is not None and chosen.name == "gpu"


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_device_kept_by_a_hung_process_does_not_hold_up_the_run(how):
    """Its trainer cannot get it: after a while another node's trainer has the place, and keeps it."""
    sim = Sim()
    sim.tick(TWO, replace(demand("r1"), wants_train=True))
    assert sim.leases["gpu"].lease.role is Role.TRAIN
    there = [each for each in TWO if (each.node, each.service) != ("gpu", WORKER)] if how == "gone" else TWO
    quiet = [("gpu", WORKER)] if how == "silent" else []
    holding = {"gpu": frozenset({WORKER})}

    sim.fleet.observe(there, sim.now + STUCK_SECONDS - 1, quiet)
    assert trainer_of(sim.fleet.nodes(sim.leases, holding), "r1").name == "gpu"
    sim.fleet.observe(there, sim.now + STUCK_SECONDS, quiet)
    nodes = sim.fleet.nodes(sim.leases, holding)
    assert trainer_of(nodes, "r1").name == "gpu2"
    taken = sim.fleet.nodes(sim.leases, {"gpu": frozenset({WORKER, TRAINER})})
    assert trainer_of(taken, "r1").name == "gpu", "its trainer has the device: who held it before is dead"
