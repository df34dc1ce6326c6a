"""Which older weights version each node keeps, where episodes keep the version they began with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import NodeStatus, Role
from seamlessflow_scheduler.placement.pinned_versions import STEP_SECONDS, VersionHolder, VersionPlan, version_plan
from seamlessflow_scheduler.policy import Demand
from tests.services.scheduler.test_fleet import Sim, machine

SLOTS = 8
VERSIONS = st.integers(0, 7)
"""So many that no two share a slot."""
NEEDED = st.sets(VERSIONS)
TAGS = tuple(f"rollout+v{slot}" for slot in range(4))


@st.composite
def fleets(draw, versions=VERSIONS, min_size=1):
    """Nodes of which each has the newest version, most have an older one too, and some were told to keep one."""
    newest = draw(versions)
    older = st.none() | st.integers(0, newest)
    return [
        VersionHolder(
            f"n{number}",
            frozenset({newest, draw(older)} - {None}),
            keeps=draw(older),
            will_leave=draw(st.booleans()),
            is_away=draw(st.booleans()),
        )
        for number in range(draw(st.integers(min_size, 6)))
    ]


def followed(keepers: list[VersionHolder], told: VersionPlan, newer: int | None = None) -> list[VersionHolder]:
    """As nodes do: what is told is fetched where it is not there; a newer version replaces what is not kept."""
    after = []
    for keeper in keepers:
        keeps, newest = told.keeps[keeper.name], max(keeper.has)
        older = [keeps] if keeps is not None and keeps != newest else sorted(keeper.has - {newest})[-1:]
        has = {newest, *older}
        if newer is not None:
            has = {newer, newest if keeps is None else keeps}
        after.append(replace(keeper, has=frozenset(has), keeps=keeps))
    return after


@given(needed=NEEDED, keepers=fleets())
def test_with_enough_nodes_every_needed_version_has_a_holder_also_when_the_next_one_comes(needed, keepers):
    """Enough: one for each needed version but the newest, and one for the newest, which is then an older one as well."""
    newest = max(max(keeper.has) for keeper in keepers)
    needed = {version for version in needed if version <= newest}
    told = version_plan(needed, keepers, SLOTS)
    if len(needed - {newest}) <= len(keepers) - 1:
        assert told.released == ()
        now, then = followed(keepers, told), followed(keepers, told, newer=newest + 1)
        assert needed <= {version for keeper in now for version in keeper.has}
        assert needed <= {version for keeper in then for version in keeper.has}


@given(needed=NEEDED, keepers=fleets())
def test_what_was_followed_stands(needed, keepers):
    """The same answer again, so nothing is fetched twice and no lease is written twice."""
    told = version_plan(needed, keepers, SLOTS)
    again = version_plan(needed, followed(keepers, told), SLOTS)

    assert again.keeps == told.keeps
    assert set(told.released) <= set(again.released) <= set(needed)


@given(needed=NEEDED, keepers=fleets(), others=NEEDED)
def test_a_version_stays_where_it_is_kept_as_long_as_it_is_needed(needed, keepers, others):
    """Whatever else comes to be needed, unless newer ones need all the room there is."""
    first = version_plan(needed, keepers, SLOTS)
    keepers = followed(keepers, first)
    after = version_plan(needed | others, keepers, SLOTS)
    for name, version in first.keeps.items():
        if version is not None and version in after.keeps.values():
            assert after.keeps[name] == version


@given(needed=NEEDED, keepers=fleets())
def test_a_version_has_one_keeper_at_most_and_one_node_keeps_what_is_newest_now(needed, keepers):
    """No version is pinned twice; and the newest version has a holder once it is not the newest any more."""
    told = list(version_plan(needed, keepers, SLOTS).keeps.values())
    versions = [version for version in told if version is not None]

    assert len(versions) == len(set(versions)) < len(told)
    assert set(versions) <= needed


@given(needed=NEEDED, keepers=fleets())
def test_only_what_nobody_has_or_will_have_is_let_go(needed, keepers):
    """Its generations go on under the newest; until then no node would pull them."""
    told = version_plan(needed, keepers, SLOTS)
    there = {version for keeper in keepers for version in keeper.has}
    newest = max(there)

    assert set(told.released) == {v for v in needed if v < newest and v not in there and v not in told.keeps.values()}


@given(needed=NEEDED, keepers=fleets())
def test_where_room_is_short_the_newer_ones_are_kept(needed, keepers):
    """Tokens of the oldest are the next to be too old to train."""
    told = version_plan(needed, keepers, SLOTS)
    newest = max(max(keeper.has) for keeper in keepers)
    versions = {version for version in told.keeps.values() if version is not None}

    assert versions == set(sorted((v for v in needed if v < newest), reverse=True)[: len(keepers) - 1])


@given(needed=st.sets(st.integers(0, 20)), keepers=fleets(st.integers(0, 20)), slots=st.integers(2, 8))
def test_of_two_versions_in_one_slot_the_older_is_let_go(needed, keepers, slots):
    """Else who has the one would be given, and hand back, the generations of the other, again and again."""
    told = version_plan(needed, keepers, slots)
    there = {version for keeper in keepers for version in keeper.has}
    live = {v for v in needed if v <= max(there)} - set(told.released)

    assert all(a == b or (a - b) % slots for a in live for b in live)


def test_while_nobody_says_what_it_has_nothing_moves():
    """Workers that start soon announce their versions; until then nothing is known to be lost."""
    assert version_plan({3}, [VersionHolder("a", keeps=3), VersionHolder("b")], SLOTS) == VersionPlan({"a": 3, "b": None})


# ------------------------------------------------------------------------------------------------------- leases


def statuses(*marks: str, needed: tuple[int, ...], **has: tuple[int, ...]) -> list[NodeStatus]:
    """Machines, of which the first has the agents; ``has``: versions of each worker."""
    found = []
    for mark in marks:
        for each in machine(mark)[: 4 if mark == marks[0] else 1]:
            versions = {"rollout-worker": has.get(mark, ()), "agent-runner": needed}.get(each.service, ())
            found.append(each.model_copy(update={"versions": versions, "run": "r1"}))
    return found


class PinnedSim(Sim):
    """Nodes whose processes go on announcing the run of their versions."""

    def look(self, statuses: list[NodeStatus]) -> None:
        obeyed = {name: {"epoch": held.lease.epoch} for name, held in self.leases.items()}
        self.fleet.observe([s.model_copy(update=obeyed.get(s.node, {})) for s in statuses], self.now)


DEMAND = Demand("r1", "disaggregated", envs=("e",), tags=TAGS, version_slots=4)


def test_leases_name_all_slots_and_say_who_keeps_which_version():
    """The tags never change with versions: a worker pulls those of what it has, without waiting for another lease."""
    sim = PinnedSim()
    leases, waits = sim.tick(statuses("a", "b", "c", needed=(3, 5), a=(5,), b=(4, 5), c=(3, 5)), DEMAND)
    rolling = {name: lease for name, lease in leases.items() if lease.role is Role.ROLLOUT}

    assert waits == {"r1": ""}
    assert {lease.tags for lease in rolling.values()} == {TAGS}
    assert {name: lease.keeps for name, lease in rolling.items()} == {"gpu-b": None, "gpu-c": 3}


def test_a_version_whose_holder_is_gone_is_given_to_another_and_let_go_where_there_is_no_room():
    """Within the grace its lease stands: it may be restarting."""
    sim = PinnedSim(grace_seconds=10.0)
    sim.tick(statuses("a", "b", "c", needed=(3, 5), a=(5,), b=(4, 5), c=(3, 5)), DEMAND)
    without = statuses("a", "b", needed=(3, 5), a=(5,), b=(4, 5))
    leases, _ = sim.tick(without, DEMAND)
    assert leases["gpu-c"].keeps == 3 and leases["gpu-b"].keeps is None
    leases, _ = sim.tick(without, DEMAND, after=11.0)

    assert leases["gpu-b"].keeps is None and leases["gpu-b"].let_go == (3,), "one node keeps the newest two"
    leases, _ = sim.tick(statuses("a", "b", "d", needed=(3, 5), a=(5,), b=(4, 5), d=(5,)), DEMAND)
    assert [leases[name].keeps for name in ("gpu-b", "gpu-d")] == [3, None]
    assert leases["gpu-b"].let_go == leases["gpu-d"].let_go == ()


def test_what_an_absent_runners_episodes_keep_is_remembered_for_as_long_as_it_may_come_back():
    """A presence that was renewed too late makes no scheduler forget a version."""
    sim = PinnedSim(grace_seconds=10.0)
    whole = statuses("a", "b", "c", needed=(3,), a=(5,), b=(4, 5), c=(3, 5))
    sim.tick(whole, DEMAND)
    away = [each for each in whole if each.service != "agent-runner"]

    assert sim.tick(away, DEMAND)[0]["gpu-c"].keeps == 3
    assert sim.tick(away, DEMAND, after=11.0)[0]["gpu-c"].keeps is None


def test_versions_of_another_run_count_for_nothing():
    """A worker that comes from another run has none of this one's."""
    sim = PinnedSim()
    of_others = [each.model_copy(update={"run": "r0"}) for each in statuses("a", "b", "c", needed=(3,), b=(3, 5), c=(3, 5))]

    assert {lease.keeps for lease in sim.tick(of_others, DEMAND)[0].values()} == {None}


def test_a_run_that_keeps_no_versions_has_leases_as_ever():
    """Whatever processes announce."""
    sim = PinnedSim()
    demand = replace(DEMAND, version_slots=0, tags=("rollout",))
    leases, _ = sim.tick(statuses("a", "b", "c", needed=(3,), b=(3, 5), c=(3, 5)), demand)

    assert {(lease.keeps, lease.let_go) for lease in leases.values()} == {(None, ())}


def lending(needed: tuple[int, ...], **has: tuple[int, ...]) -> list[NodeStatus]:
    """Two machines: ``a`` has agents and trainer and is lent between steps, ``b`` rolls out."""
    return statuses("a", "b", needed=needed, **has)


LENDING = replace(DEMAND, policy="multiplexed")
STEP = replace(LENDING, wants_train=True, groups_ready=1)


def test_a_version_that_only_a_node_has_that_takes_a_step_waits_for_it_but_not_for_long():
    """Then another fetches it, or, as here, where no other has room, its episodes go on under the newest."""
    sim = PinnedSim()
    here = lending((3, 5), a=(3, 5), b=(4, 5))
    leases, _ = sim.tick(here, LENDING)
    assert leases["gpu-a"].keeps == 3
    leases, _ = sim.tick(here, STEP)
    assert leases["gpu-a"].role is Role.TRAIN and leases["gpu-b"].let_go == ()
    leases, _ = sim.tick(here, STEP, after=STEP_SECONDS + 2)
    assert leases["gpu-b"].let_go == (3,)
    leases, _ = sim.tick(here, LENDING)

    assert leases["gpu-a"].role is Role.ROLLOUT and leases["gpu-a"].keeps == 3
    assert leases["gpu-b"].let_go == ()


def test_no_lease_of_a_step_changes_because_of_versions():
    """Its node hears of them when it rolls out again: a trainer has other things to obey."""
    sim = PinnedSim()
    sim.tick(lending((3, 5), a=(3, 5), b=(4, 5)), LENDING)
    before = sim.tick(lending((3, 5), a=(3, 5), b=(4, 5)), STEP)[0]["gpu-a"]
    after = sim.tick(lending((5,), a=(3, 5), b=(4, 5)), STEP)[0]["gpu-a"]

    assert (after, before.keeps) == (before, 3)
    assert sim.tick(lending((5,), a=(3, 5), b=(4, 5)), LENDING)[0]["gpu-a"].keeps is None
