"""The simulator: the same scene gives the same outcome, every token is where it should be, and time is where it says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.fleet.baselines import balanced_share, best_split, idle_lending, modes
from loadtest.fleet.cost import cost_of
from loadtest.fleet.simulator import NOBODYS, Change, Mode, Scene, config_of, node_name, simulate
from loadtest.fleet.simulator_account import Doing, Outcome
from loadtest.fleet.simulator_episodes import Episode
from loadtest.fleet.simulator_queue import Queue
from loadtest.fleet.workloads import AGENTIC, REASONING, Lengths, Workload, shifting, with_ratio, work_of
from seamlessflow.contracts import Lease, Role, Service
from seamlessflow_scheduler.policy.base import Demand, Node, Process

SHORT = replace(REASONING, answers=Lengths(400, 0.8, 4_000), group_size=4)
AGENTS = replace(AGENTIC, turns=Lengths(4, 0.5, 8), group_size=4)
NODES, GROUPS = 4, 16


def scene(name: str, workload: Workload = SHORT, *, ratio: float = 1 / 2.5, split: int = 1, **changed: object) -> Scene:
    """Four nodes, steps of sixteen groups of four."""
    mode = modes(NODES, split)[name]
    cost = with_ratio(cost_of(slots=16), workload, ratio, GROUPS)
    base = Scene(NODES, workload, cost, mode, GROUPS, steps=6, warmup_steps=2)
    return replace(base, **changed)  # type: ignore[arg-type]


def tokens_of(workload: Workload, groups: int) -> int:
    return sum(turn.sampled for task in range(groups) for index in range(4) for turn in workload.episode(f"t{task}", index))


@pytest.mark.parametrize("name", list(modes(NODES, 1)))
@pytest.mark.parametrize("workload", [SHORT, AGENTS], ids=["single", "agentic"])
def test_every_mode_plays_a_run_and_loses_no_token(name: str, workload: Workload) -> None:
    """Steps are taken, shares of time add up, and no more is reached than the bound allows."""
    outcome = simulate(scene(name, workload, split=2))

    assert outcome.steps == 6
    assert outcome.lost_or_repeated_tokens == 0
    assert outcome.unsaid_tokens == 0
    assert 0.05 < outcome.over_bound < 1.1  # a few steps: what was begun before counts
    for share in outcome.share.values():
        assert sum(share.values()) == pytest.approx(1.0)
    bound = scene(name).mode.max_staleness
    assert sum(count for age, count in outcome.staleness.items() if age <= bound) == outcome.trained_tokens
    assert sum(outcome.staleness.values()) == outcome.trained_tokens + outcome.masked_tokens


def test_synchronous_modes_train_only_tokens_of_the_newest_weights() -> None:
    """And they train every token of every group, in the order of tasks."""
    outcome = simulate(scene("sync colocated", warmup_steps=0))

    assert set(outcome.staleness) == {0}
    assert outcome.all_tokens == tokens_of(SHORT, 6 * GROUPS)
    assert outcome.moved_generations == 0


def test_the_same_scene_gives_the_same_outcome() -> None:
    """No clock, no chance: also with nodes that come and go."""
    changes = (Change(30.0, node_name(3), joins=False), Change(60.0, node_name(9), joins=True))
    one = simulate(scene("auto", AGENTS, changes=changes, with_spans=True))

    assert one == simulate(scene("auto", AGENTS, changes=changes, with_spans=True))
    assert one != simulate(scene("auto", replace(AGENTS, seed=1), changes=changes, with_spans=True))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["auto", "multiplexed", "idle lending", "partial rollout", "sync colocated"]),
    st.lists(st.tuples(st.floats(1, 150), st.integers(0, 3)), max_size=2, unique_by=lambda each: each[1]),
    st.lists(st.floats(1, 150), max_size=2),
)
def test_nodes_that_die_and_join_lose_nothing(name: str, deaths: list[tuple[float, int]], joins: list[float]) -> None:
    """Whoever dies (the trainer's node too), whenever: the run goes on, and every accepted token is there once."""
    changes = [Change(at, node_name(number), joins=False) for at, number in deaths]
    changes += [Change(at, node_name(10 + number), joins=True) for number, at in enumerate(joins)]
    outcome = simulate(scene(name, split=2, changes=tuple(changes)))

    assert outcome.steps == 6
    assert outcome.lost_or_repeated_tokens == 0
    assert outcome.unsaid_tokens >= 0


def test_spans_cover_the_time_of_every_node_without_overlap() -> None:
    """So a Gantt chart can be drawn from them."""
    outcome = simulate(scene("auto", with_spans=True, warmup_steps=1))
    for name in {span.node for span in outcome.spans}:
        mine = [span for span in outcome.spans if span.node == name]
        assert mine[0].start == 0.0
        assert mine[-1].end == pytest.approx(outcome.all_seconds)
        assert all(before.end == after.start for before, after in itertools.pairwise(mine))
    assert {span.doing for span in outcome.spans} >= {Doing.ROLLOUT, Doing.TRAIN, Doing.HANDOVER}


def test_a_fixed_split_hands_nothing_over_and_lending_moves_generations() -> None:
    """A generation of a node that is called back goes on elsewhere, and its context is prefilled again."""
    fixed, lending = simulate(scene("partial rollout", split=2)), simulate(scene("idle lending", split=2))

    assert fixed.handover_share == fixed.moved_generations == fixed.reprefilled_tokens == 0
    assert lending.handover_share > 0
    assert lending.moved_generations > 0
    assert lending.reprefilled_tokens > 0


def test_without_partial_rollout_no_generation_has_two_versions() -> None:
    """New weights wait until a node's generations have ended; with it they are loaded under them."""
    drained, under = simulate(scene("one step off")), simulate(scene("partial rollout"))

    assert set(drained.staleness) <= {0, 1}
    assert len(under.staleness) > 2
    assert drained.throughput < under.throughput


def test_agents_find_their_cache_where_they_were() -> None:
    """An episode's later turns go to the owner of its bucket, as long as that has room."""
    room = cost_of(slots=256)
    owned = simulate(scene("partial rollout", AGENTS, cost=room, buckets=8))
    shared = simulate(scene("partial rollout", AGENTS, cost=room, buckets=1))

    assert owned.cache_hits > 0.8 > shared.cache_hits


def test_the_search_finds_the_best_split_of_all() -> None:
    """It tries what is beside the best so far, until that is worse on both sides."""
    fixed = scene("partial rollout", ratio=1.0, steps=8)
    split, outcome, tried = best_split(fixed)
    best, _, everything = best_split(fixed, range(1, NODES))

    assert split == best and tried == {each: everything[each] for each in tried}
    assert outcome.throughput == max(tried.values()) == max(everything.values())


@given(st.integers(2, 200), st.integers(1, 200), st.sampled_from(["partial rollout", "sync disaggregated", "multiplexed"]))
def test_the_search_climbs_to_a_peak_wherever_it_is(nodes: int, peak: int, name: str) -> None:
    """However far from the balanced share."""
    peak = min(peak, nodes - 1)
    fixed = replace(scene(name), nodes=nodes)

    def run(tried: Scene) -> Outcome:
        return cast(Outcome, SimpleNamespace(throughput=-abs(tried.mode.train_nodes - peak)))

    assert best_split(fixed, run=run)[0] == peak


def test_the_search_for_a_synchronous_split_begins_where_both_halves_waits_are_least() -> None:
    """Four times as much rollout: of nine nodes three train, not two."""
    cost = with_ratio(cost_of(), REASONING, 1 / 4, 64)
    fixed = Scene(9, REASONING, cost, modes(9, 1)["sync disaggregated"], 64)

    assert balanced_share(fixed) == pytest.approx(3.0, abs=0.1)
    assert balanced_share(replace(fixed, mode=modes(9, 1)["partial rollout"])) == pytest.approx(9 / 5, abs=0.1)


@pytest.mark.parametrize(("ready", "role"), [(3, Role.ROLLOUT), (4, Role.TRAIN)])
def test_idle_lending_lends_nothing_while_a_whole_batch_waits(ready: int, role: Role) -> None:
    """Between two steps of which the second can begin at once."""
    worker, trainer = Service.ROLLOUT_WORKER.value, Service.TRAINER.value
    processes = {worker: Process(frozenset({"rollout"})), trainer: Process(frozenset({"train"}))}
    lease = Lease(run="r1", role=Role.TRAIN, epoch=4, trainer=True, since=0.0, reason="a batch is ready")
    lead = Node("a", processes, lease, holding=frozenset({trainer}))
    demand = Demand("r1", "lending", groups_ready=ready, groups_per_step=4, max_staleness=8)

    assert [each.role for each in idle_lending([lead], demand, 1000.0)] == [role]


def test_busy_is_rollout_and_training_alone() -> None:
    """As in a timed run: hand-overs and the loading of weights are neither."""
    outcome = simulate(scene("idle lending", split=2))
    share = {"n0": {Doing.ROLLOUT: 0.5, Doing.TRAIN: 0.2, Doing.HANDOVER: 0.1, Doing.LOAD: 0.1, Doing.IDLE: 0.1}}

    assert replace(outcome, share=share).busy_share == pytest.approx(0.7)


def test_the_bound_is_what_work_and_speed_allow() -> None:
    """Training work is a ratio of rollout work, as it was asked for."""
    cost = with_ratio(cost_of(), REASONING, 1 / 4, 64)
    work = work_of(REASONING, cost)
    fixed = cost.train_fixed / (64 * REASONING.group_size)

    assert (work.train_seconds + fixed) / work.rollout_seconds == pytest.approx(1 / 4, rel=1e-3)


def test_answers_get_longer_over_a_run_that_shifts() -> None:
    """As named: three times, from shorter ones to those of the stationary workload."""

    def mean(workload: Workload, progress: float) -> float:
        lengths = [sum(turn.sampled for turn in turns) for turns in workload.sample(progress, groups=50)]
        return sum(lengths) / len(lengths)

    grown = shifting(replace(REASONING, answers=Lengths(600, 0.5, 100_000)))
    assert mean(grown, 1.0) == pytest.approx(3 * mean(grown, 0.0), rel=0.01)
    assert grown.episode("t1", 0, 1.0) == replace(grown, growth=1.0, answers=Lengths(600, 0.5, 100_000)).episode("t1", 0)


def test_a_scene_is_a_run_document_that_the_services_accept() -> None:
    """The simulated scheduler reads the same configuration as the real one."""
    config = config_of(scene("auto"))

    assert (config.fleet.policy, config.fleet.train_nodes, config.algorithm.max_staleness) == ("auto", NODES, 8)
    assert Mode("mine", "x:y", 1, 1).partial_rollout


def test_a_backlog_counts_as_far_as_it_was_worked_on_in_the_window() -> None:
    """Tokens rolled out before count only as trained, and tokens that wait at the end not at all."""
    outcome: Outcome = simulate(scene("partial rollout"))
    drained = replace(outcome, sampled_tokens=outcome.trained_tokens // 2, masked_tokens=0, rollout_share=0.75)
    piled_up = replace(drained, sampled_tokens=2 * outcome.trained_tokens)

    assert drained.throughput == pytest.approx((0.75 / 2 + 0.25) * outcome.trained_throughput, rel=1e-3)
    assert piled_up.throughput == outcome.trained_throughput


@pytest.mark.parametrize("name", ["sync colocated", "multiplexed", "auto", "partial rollout"])
@pytest.mark.parametrize("workload", [SHORT, AGENTS], ids=["single", "agentic"])
def test_a_run_that_tells_long_ones_from_others_plays_on_and_loses_no_token(name: str, workload: Workload) -> None:
    """Also where a node dies that had some of them."""
    repeated = replace(workload, questions=GROUPS)
    outcome = simulate(scene(name, repeated, split=2, long_tail=1.2, changes=[Change(100.0, node_name(3), joins=False)]))

    assert outcome.steps == 6
    assert outcome.lost_or_repeated_tokens == 0


def test_questions_that_come_again_take_about_as_long_as_before() -> None:
    """Tasks of one question have its share of the variance in common, and are no copies of each other."""
    workload = replace(SHORT, questions=GROUPS, common=1.0)

    assert workload.question("t3") == workload.question(f"t{3 + GROUPS}") != workload.question("t4")
    assert workload.episode("t3", 0) == workload.episode(f"t{3 + GROUPS}", 1)
    assert replace(SHORT, questions=GROUPS).episode("t3", 0) != replace(SHORT, questions=GROUPS).episode(f"t{3 + GROUPS}", 0)


class Puller:
    """A node with some free slots, and room for some new episodes."""

    def __init__(self, name: str, *, is_lent: bool = False, slots: int = 2, room: int = 0) -> None:
        self.name, self.is_lent, self._slots, self._room = name, is_lent, slots, room
        self.taken: list[str] = []
        self.owned: tuple[int, ...] = ()

    @property
    def credit(self) -> int:
        return self._slots - len(self.taken)

    @property
    def room(self) -> int:
        return self._room - sum(name.startswith("new") for name in self.taken)

    def take(self, episode: Episode) -> None:
        self.taken.append(episode.name)


def asked(name: str, *, bucket: int, is_long: bool) -> Episode:
    return cast(Episode, SimpleNamespace(name=name, bucket=bucket, is_long=is_long, order=0, waits=False))


def test_the_queue_gives_long_ones_to_who_stays_and_to_a_lent_node_only_what_is_left() -> None:
    """As the workers' pulls do. Buckets 0 and 1 are of long ones, 2 and 3 of the others."""
    queue, lent, stays = Queue(), Puller("a", is_lent=True, slots=4), Puller("b", slots=2)
    queue.bind(lent, (2,), 2)
    queue.bind(stays, (0, 1, 3), 2)
    for number in range(3):
        queue.ask(asked(f"long-{number}", bucket=number % 2, is_long=True))

    assert (stays.taken, lent.taken) == (["long-0", "long-1"], ["long-2"])


def test_of_what_waits_an_owner_takes_its_long_ones_first_and_a_lent_node_long_ones_last() -> None:
    """Whatever was asked first."""
    queue = Queue()
    for number in range(3):
        queue.ask(asked(f"plain-{number}", bucket=2, is_long=False))
        queue.ask(asked(f"long-{number}", bucket=0, is_long=True))
    lent, stays, other = Puller("a", is_lent=True, slots=2), Puller("b"), Puller("c", is_lent=True)
    queue.bind(lent, (2,), 2)
    queue.bind(stays, (0,), 2)
    queue.bind(other, (), 2)

    assert (lent.taken, stays.taken, other.taken) == (["plain-0", "plain-1"], ["long-0", "long-1"], ["plain-2", "long-2"])


def test_what_begins_an_episode_goes_to_whoever_has_most_room_and_waits_where_nobody_has() -> None:
    """Slots or not; to who is lent only where nobody else has room. What continues one waits for nothing of that."""
    queue, full, roomy, lent = Queue(), Puller("a", slots=9), Puller("b", slots=9, room=2), Puller("c", is_lent=True, room=5)
    for each in (full, roomy, lent):
        queue.bind(each, (), 2)
    for number in range(8):
        queue.ask(asked(f"new-{number}", bucket=NOBODYS, is_long=False))
    queue.ask(asked("old", bucket=1, is_long=False))

    assert roomy.taken[:2] == ["new-0", "new-1"] and lent.taken == [f"new-{number}" for number in range(2, 7)]
    assert queue.num_waiting == 1 and [each.taken for each in (full, roomy)].count(["old"]) == 1
    late = Puller("d", slots=9, room=1)
    queue.bind(late, (), 2)
    assert late.taken == ["new-7"] and queue.num_waiting == 0


def test_what_is_missing_from_the_bound_is_accounted_for_by_its_causes() -> None:
    """All of it: nothing is left over."""
    for name, workload in (("auto", SHORT), ("partial rollout", AGENTS), ("sync colocated", AGENTS)):
        outcome = simulate(scene(name, workload, split=2))

        assert 1 - outcome.over_bound == pytest.approx(sum(outcome.losses.values()), abs=1e-6)
        assert min(outcome.losses["small batches"], outcome.losses["prefilled again"], outcome.losses["idle"]) >= 0
    assert outcome.losses["idle"] > outcome.losses["hand-over"] > 0


def test_a_worker_takes_as_many_episodes_as_its_cache_has_room_for_whatever_its_slots() -> None:
    """With as many as there are slots contexts are prefilled again and again: a fifth of all node-time."""
    small = replace(cost_of(), kv_tokens=150_000)
    found = []
    for slots in (32, 64, 256):
        cost = with_ratio(replace(small, slots=slots), AGENTS, 1 / 2.5, GROUPS)
        found.append(simulate(scene("partial rollout", AGENTS, cost=cost, steps=8, buckets=16)))

    assert max(each.throughput for each in found) < 1.1 * min(each.throughput for each in found)
    assert max(each.losses["prefilled again"] for each in found) < 0.05
    assert min(each.cache_hits for each in found) > 0.7
