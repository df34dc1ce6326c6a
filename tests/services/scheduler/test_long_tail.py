"""What an episode should take, what that changes in openings and leases, and that a journal always tells the same of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.contracts import (
    DropReason,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    GroupAdmitted,
    GroupDropped,
    Lease,
    Role,
    TaskSubmitted,
)
from seamlessflow.contracts.tags import is_long, long_tag, needed_tag
from seamlessflow.errors import ConfigError
from seamlessflow_scheduler.admission.decisions import next_events
from seamlessflow_scheduler.admission.length_estimate import LengthEstimator
from seamlessflow_scheduler.admission.measurements import RunMeasurements
from seamlessflow_scheduler.admission.open_group import episode_id
from seamlessflow_scheduler.admission.run_state import RunProgress
from seamlessflow_scheduler.fleet_state import HeldLease
from seamlessflow_scheduler.placement.plan import next_plan
from seamlessflow_scheduler.policy.base import Demand, Node, Process
from seamlessflow_scheduler.run import demand_of
from tests.services.scheduler.rhythm_builders import ended, told

RUN, ENV = "demo-0001", "solver"
TAGS = ("long+rollout", "rollout")


def config(**fleet: Any) -> RunConfig:
    return parse_run_config(
        {
            "model": {"name": "tiny-calculator"},
            "agents": [{"env": ENV, "entrypoint": "a:b"}],
            "algorithm": {"steps": 9, "groups_per_step": 2, "group_size": 2, "max_staleness": 0},
            "fleet": {"long_tail": 1.5, **fleet},
            "evaluation": {"before": False, "after": False},
        }
    )


def task(name: str, prompt: str = "", **more: Any) -> TaskSubmitted:
    return TaskSubmitted(run=RUN, task=name, env=more.pop("env", ENV), prompt=prompt or name, **more)


def end_of(name: str, tokens: int | None, status: EpisodeStatus = EpisodeStatus.COMPLETED, index: int = 0) -> EpisodeEnded:
    origin = EpisodeOrigin(group=f"g-{name}", task=name, env=ENV, index=index, attempt=0)
    return EpisodeEnded(
        run=RUN, episode=f"g-{name}-{index}-0", shard=0, origin=origin, status=status, reward=1.0, sampled_tokens=tokens
    )


ends = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5000), st.sampled_from(EpisodeStatus)), max_size=20)


@given(ends, st.randoms())
def test_the_same_ends_give_the_same_expectation_in_any_order(published, chance) -> None:
    """A scheduler that starts again expects what the last one expected."""
    shuffled = chance.sample(published, len(published))
    once, again = LengthEstimator(1.5), LengthEstimator(1.5)
    for lengths, order in ((once, published), (again, shuffled)):
        for prompt, tokens, status in order:
            lengths.ended(task(prompt), end_of(prompt, tokens, status))

    for prompt in "abcd":
        assert once.expected(task(prompt)) == again.expected(task(prompt))
        assert once.is_long(task(prompt)) == again.is_long(task(prompt))


@given(ends, st.floats(1.0, 10.0))
def test_what_is_long_takes_much_more_than_the_mean_and_not_everything_is_long(published, long_tail) -> None:
    """So there is always something that fills the gaps."""
    lengths = LengthEstimator(long_tail)
    for prompt, tokens, status in published:
        lengths.ended(task(prompt), end_of(prompt, tokens, status))
    counted = [tokens for _, tokens, status in published if status not in ("runner_lost", "not_started", "run_ended")]
    prompts = {prompt for prompt, _, status in published if status not in ("runner_lost", "not_started", "run_ended")}

    for prompt in "abcd":
        expected = lengths.expected(task(prompt))
        assert (expected is None) == (not counted)
        if lengths.is_long(task(prompt)):
            assert expected is not None and expected >= long_tail * (sum(counted) / len(counted) - 0.5)
    if long_tail > 1.5 and sum(counted) > 10 * len(counted):
        assert not prompts or not all(lengths.is_long(task(prompt)) for prompt in prompts)


def test_what_the_author_says_comes_first_then_the_prompt_then_the_environment() -> None:
    """A new task is like others of its environment; the same question is like itself."""
    lengths = LengthEstimator(1.5)
    lengths.ended(task("t1", "short"), end_of("t1", 100))
    lengths.ended(task("t2", "long"), end_of("t2", 900))

    assert lengths.expected(task("t3", "long")) == 900 and lengths.is_long(task("t3", "long"))
    assert lengths.expected(task("t4", "new")) == 500 and not lengths.is_long(task("t4", "new"))
    assert lengths.expected(task("t5", "long", expected_tokens=10)) == 10
    assert lengths.expected(task("t6", "long", env="other")) is None


def test_without_prompts_the_data_tell_tasks_apart() -> None:
    """Some agents are told everything in the data."""
    lengths = LengthEstimator(1.5)
    asked = TaskSubmitted(run=RUN, task="t1", env=ENV, data={"issue": 7})
    lengths.ended(asked, end_of("t1", 900))
    lengths.ended(TaskSubmitted(run=RUN, task="t2", env=ENV, data={"issue": 8}), end_of("t2", 100))

    assert lengths.expected(asked.model_copy(update={"task": "t3"})) == 900


def test_a_run_that_does_not_ask_for_it_remembers_nothing_and_says_nothing() -> None:
    """The default."""
    lengths = LengthEstimator(None)
    lengths.ended(task("t"), end_of("t", 900))

    assert lengths == LengthEstimator(None) and lengths.expected(task("t")) is None and not lengths.is_long(task("t"))
    progress = RunProgress(RUN, config(long_tail=None))
    published = told(progress, task("t", expected_tokens=10_000))
    assert {each.tag for each in published if isinstance(each, EpisodeOpened)} == {"rollout"}
    assert progress.config.work_tags == ("rollout",)


def test_expected_long_episodes_are_opened_first_and_carry_their_class_in_their_tag() -> None:
    """In whatever order their tasks came; all members of a group alike."""
    progress = RunProgress(RUN, config())
    published = told(progress)
    assert published == []
    told(progress, task("t1", "short"), task("t2", "long"))
    for name, index in itertools.product(("t1", "t2"), range(2)):
        told(progress, end_of(name, 100 if name == "t1" else 1000, index=index))
    progress.dropped += 2  # room for the next ones
    progress.apply(task("t3", "short"))
    published = told(progress, task("t4", "long"))
    opened = [each for each in told(progress) + published if isinstance(each, EpisodeOpened)]
    admitted = {each.task: each for each in published if isinstance(each, GroupAdmitted)}

    assert [(each.origin.task, each.tag, each.expected_tokens) for each in opened] == [
        ("t4", "long+rollout", 1000),
        ("t4", "long+rollout", 1000),
        ("t3", "rollout", 100),
        ("t3", "rollout", 100),
    ]
    assert admitted["t4"].long and not admitted["t3"].long


def test_a_journal_that_is_folded_again_opens_another_attempt_in_the_same_class() -> None:
    """Whatever was learned since its group was admitted."""
    live, events = RunProgress(RUN, config()), list[Event]()
    for event in (task("t1", "short", expected_tokens=100), end_of("t1", 100), end_of("t1", 100, index=1)):
        events += [event, *told(live, event)]
    news = task("t2", "long", expected_tokens=1000)
    published = told(live, news)
    events += [news, *published]
    lost = ended(next(e for e in published if isinstance(e, EpisodeOpened)), EpisodeStatus.RUNNER_LOST)
    events.append(lost)
    again = told(live, lost)

    fresh = RunProgress(RUN, config())
    for event in [*events, *events]:
        fresh.apply(event)
    assert told(fresh) == again
    assert [(e.tag, e.origin.attempt) for e in again if isinstance(e, EpisodeOpened)] == [("long+rollout", 1)]


class Counted(dict[str, Any]):
    """Counts look-ups."""

    looked_up = 0

    def __getitem__(self, key: str) -> Any:
        self.looked_up += 1
        return super().__getitem__(key)


def test_a_slice_costs_its_own_size_however_many_are_owed() -> None:
    """Publishing 65,536 openings in slices keeps no event waiting; the long ones come first in each of them."""
    progress = RunProgress(RUN, config())
    for number in range(200):
        progress.apply(task(f"t{number}"))
        admitted = GroupAdmitted(
            run=RUN, group=f"g{number}", task=f"t{number}", env=ENV, num_episodes=2, step=0, long=number % 40 == 39
        )
        progress.apply(admitted)
    groups = Counted(progress.groups)
    progress.groups = groups
    openings = [each for each in next_events(progress, most=8) if isinstance(each, EpisodeOpened)]

    assert [each.origin.group for each in openings] == ["g39", "g39", "g79", "g79", "g119", "g119", "g159", "g159"]
    assert groups.looked_up == 8
    assert len(progress.owed_long) == 10 and len(progress.owed) == 390
    lost = ended(openings[0], EpisodeStatus.RUNNER_LOST)
    for event in (*openings, lost, GroupDropped(run=RUN, group="g199", reason=DropReason.RUN_ENDED)):
        progress.apply(event)
    assert list(progress.owed_long) == [episode_id("g39", 0, 1)]


def test_long_groups_are_spread_over_the_buckets() -> None:
    """Each owner starts its own first, so that none should have most of them."""
    progress = RunProgress(RUN, config(buckets=2))
    told(progress, task("t0", expected_tokens=100))
    told(progress, end_of("t0", 100), end_of("t0", 100, index=1))
    progress.dropped += 10
    tasks = [task(f"t{n}", expected_tokens=1000 if n in (1, 3, 5, 7) else 10) for n in range(1, 9)]
    for each in tasks:
        progress.apply(each)
    published = [each for each in told(progress) if isinstance(each, GroupAdmitted)]

    assert sorted(each.bucket for each in published if each.long) == [0, 0, 1, 1]
    assert sorted(each.bucket for each in published) == [0] * 4 + [1] * 4


def node(name: str, lease: Lease | None = None, **tags: Any) -> Node:
    both = {"rollout-worker": Process(frozenset({"rollout"})), "trainer": Process(frozenset({"train"}))}
    return Node(name, both, lease, **tags)


def planned(nodes: list[Node], **more: Any) -> dict[str, Any]:
    more = {"has_classes": True, "max_staleness": 2, **more}
    demand = Demand(RUN, "multiplexed", tags=TAGS, num_buckets=2, **more)
    held = {each.name: HeldLease(each.lease, 1, 0.0) for each in nodes if each.lease is not None}
    return {each.node: each for each in next_plan(nodes, held, [demand], 0.0).assignments}


def test_a_node_that_is_lent_owns_no_bucket_of_long_generations_as_long_as_another_stays() -> None:
    """Buckets 0 and 1 are those of long+rollout, 2 and 3 of rollout. All serve both: it is a class, not a need."""
    published = planned([node("a"), node("b"), node("c")])
    lent = next(each for each in published.values() if each.trainer)

    assert lent.role is Role.ROLLOUT and lent.lent and set(lent.buckets) == {2, 3}
    assert all(each.tags == TAGS for each in published.values())
    assert sorted(b for each in published.values() if each is not lent for b in each.buckets if b < 2) == [0, 1]


def test_a_node_that_is_all_there_is_owns_them_lent_or_not() -> None:
    """Some node has to."""
    assert planned([node("a")])["a"].buckets == (0, 1, 2, 3)


def test_a_run_waits_for_no_node_that_has_a_class() -> None:
    """Which no node ever has; it has all it needs, but for who serves."""
    demand = Demand(RUN, "multiplexed", tags=TAGS, has_classes=True)
    waits = next_plan([node("a")], {}, [demand], 0.0).waits[RUN]

    assert waits == ("no trajectory-manager", "no agent-runner")


def test_a_class_is_part_of_a_tag_and_no_part_of_a_need() -> None:
    """And people cannot use its name for something else where there are classes."""
    assert long_tag("h800+rollout") == "h800+long+rollout" and is_long("h800+long+rollout", has_classes=True)
    assert needed_tag("h800+long+rollout", has_classes=True) == "h800+rollout" and not is_long("h800+rollout", has_classes=True)
    with pytest.raises(ConfigError, match=r"long is the class .* choose another name in long\+rollout"):
        parse_run_config(document(["long"]))
    asked = document(["rollout"])
    asked["agents"][0]["needs"] = "browser+long"
    with pytest.raises(ConfigError, match=r"long is the class .* choose another name in browser\+long"):
        parse_run_config(asked)


def test_a_run_without_classes_that_has_a_tag_of_that_name_is_resumed_as_it_began() -> None:
    """An older version let people name a tag so: it is what nodes have or have not, as any other."""
    begun = {**document(["long", "rollout"]), "fleet": {}}
    begun["agents"][1]["needs"] = "long"
    old = parse_run_config(begun)
    demand = demand_of(old, RunProgress(RUN, old), RunMeasurements(RUN, old))
    plain, having = node("a"), node("b", tags=frozenset({"long"}))

    assert old.work_tags == demand.tags == TAGS and not demand.has_classes
    assert parse_run_config(old.document) == old
    assert demand.served_by(plain) == ("rollout",) and demand.served_by(having) == TAGS
    assert demand.lacks(plain, old.agents[1].needs or "") == ("long",)
    published = told(
        RunProgress(RUN, old), task("t1", env="e0", expected_tokens=10), task("t2", env="e1", expected_tokens=9999)
    )
    opened = [each for each in published if isinstance(each, EpisodeOpened)]
    assert {(each.env, each.tag) for each in opened} == {("e0", "long+rollout"), ("e1", "rollout")}


def test_who_has_a_tag_of_that_name_owns_its_buckets_lent_or_not_where_there_are_no_classes() -> None:
    """And a run without such a node reports that it waits for one."""
    having = [node(name, tags=frozenset({"long"})) for name in "abc"]
    published = planned(having, has_classes=False)
    lent = next(each for each in published.values() if each.trainer)
    assert lent.lent and set(lent.buckets) == {0, 1, 2, 3}
    alone = planned([node("a", tags=frozenset({"long"})), node("b")], has_classes=False)
    assert {name: [b for b in each.buckets if b < 2] for name, each in alone.items()} == {"a": [0, 1], "b": []}
    waits = next_plan([node("a")], {}, [Demand(RUN, "multiplexed", tags=TAGS)], 0.0).waits[RUN]
    assert any(each.startswith("tag long+rollout: no node has it") for each in waits)


def test_tags_without_room_for_their_class_are_refused_with_what_to_do() -> None:
    """Names of consumers and permissions are limited."""
    with pytest.raises(ConfigError, match="a tag has up to 3 components, got a\\+b\\+c\\+rollout"):
        parse_run_config(document(["a+b+c"]))
    with pytest.raises(ConfigError, match="up to 4 different tags"):
        parse_run_config(document(["a", "b", "c", "d", "e"]))
    assert len(parse_run_config(document(["a", "b", "c", "d"])).work_tags) == 8


def document(tags: list[str]) -> dict[str, Any]:
    agents = [{"env": f"e{number}", "entrypoint": "a:b", "tag": tag} for number, tag in enumerate(tags)]
    return {"model": {"name": "x"}, "agents": agents, "algorithm": {"steps": 1}, "fleet": {"long_tail": 2}}
