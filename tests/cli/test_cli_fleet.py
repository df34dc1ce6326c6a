"""``nodes``, ``tag``, ``untag``, ``drain`` and ``why``: what people see of the fleet, and order of it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.cli import node_tags, why
from seamlessflow.cli import nodes as fleet
from seamlessflow.cli.node_tags import with_tags, without_tags
from seamlessflow.cli.nodes import NodeView, duration_words, node_views, nodes_table
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.contracts import Hardware, Lease, NodeOrder, NodeStatus, Role, RoleAssigned, RunPhase, RunState
from seamlessflow.contracts.fleet import CONFLICT
from seamlessflow.contracts.routes import BUCKETS, LEASES_BUCKET, NODES_BUCKET, RUNS_BUCKET
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import ConfigError
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store

RUN = "demo"
NO_SCHEDULER = "no scheduler is there: it counts once one is"
WORKER = NodeStatus(
    node="n1", service="rollout-worker", instance="host-7", capabilities=("rollout", "h800"), pid=7, state="sampling", slots=32,
    engine="transformers", hardware=Hardware(device="H800", memory_bytes=80e9, flops=990e12, bandwidth_bytes=3.35e12),
    facts={"generations": 5, "tokens_per_second": 1234.5, "affinity_hit_rate": 0.82},
)  # fmt: skip
TRAINER = NodeStatus(node="n1", service="trainer", instance="host-8", capabilities=("train",), pid=8, state="waits for a batch")
LEASE = Lease(
    run=RUN, role=Role.ROLLOUT, tags=("h800+rollout", "rollout"), epoch=3, since=1000.0, reason="no batch is ready", lent=True,
    trainer=True,
)  # fmt: skip


def views(*more: NodeStatus, orders: dict[str, NodeOrder] | None = None) -> dict[str, NodeView]:
    return node_views([WORKER, TRAINER, *more], {"n1": LEASE}, orders or {})


def shown(seen: dict[str, NodeView]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(nodes_table(list(seen.values()), 1042.0))
    printed: str = console.file.getvalue()
    return printed


def test_a_node_shows_its_services_tags_device_lease_and_reason():
    """One look answers who it is, what it can do, what it does, since when and why."""
    text = shown(views(orders={"n1": NodeOrder(add=("judge",), remove=("train",))}))

    for said in (
        "n1", "rollout-worker", "trainer", "h800", "+judge (by hand)", "-train (by hand)", "H800, 80 GB, 990 TFLOPS, 3.35 TB/s",
        "transformers", "5 of 32 slots", "1,234.5 tokens/s", "82% of prompts cached", "rollout for demo, lent",
        "h800+rollout rollout", "epoch 3", "for 42 s", "no batch is ready", "trainer: waits for a batch",
    ):  # fmt: skip
        assert said in text, said


def test_a_name_that_two_processes_have_is_shown_as_a_conflict_with_both():
    """The leading scheduler saw them alternate."""
    facts = {f"{CONFLICT}n1.rollout-worker": "host-7 and host-9"}
    leader = NodeStatus(node="s", service="scheduler", instance="i", capabilities=("schedule",), pid=1, facts=facts)

    assert "CONFLICT: two rollout-worker processes: host-7 and host-9" in shown(views(leader))


def test_a_node_that_is_not_there_is_shown_for_what_stands_of_it():
    """An order is kept, and so is a lease until it is taken back."""
    seen = views(orders={"gone": NodeOrder(drain=True)})

    assert seen["gone"].why() == ["drained by hand", "nothing of it is there"]
    assert node_views([], {"n1": LEASE}, {})["n1"].why()[0] == "nothing of it is there"
    assert node_views([], {}, {"n1": NodeOrder()}) == {}, "an order that was undone is none"
    left = {"n1": LEASE.model_copy(update={"run": None, "reason": "the node is gone"})}
    assert node_views([], left, {}) == {} and "n1" in node_views([], left, {}, with_gone=True), "one may still ask why"


def test_a_role_that_no_process_plays_is_no_tag_of_a_node():
    """Whatever was ordered while one did."""
    assert views(orders={"n1": NodeOrder(add=("serve", "judge"))})["n1"].tags == ("rollout", "h800", "train", "judge")


TAGS = st.lists(st.sampled_from(["rollout", "train", "h800", "judge"]), min_size=1, unique=True).map(tuple)


@given(st.lists(st.tuples(st.booleans(), TAGS), max_size=6), TAGS)
def test_what_was_ordered_last_counts(ordered, last):
    """After `tag` a node has what can be given; after `untag` it has none of it; other tags are as they were."""
    announced = ("rollout", "h800")
    order = NodeOrder()
    for gives, tags in ordered:
        order = (with_tags if gives else without_tags)(order, tags, announced)
    given_back, taken = with_tags(order, last, announced), without_tags(order, last, announced)

    assert has(given_back, announced) >= set(last) - {"train"}, "no process plays train"
    assert not has(taken, announced) & set(last)
    assert {tag for tag in has(order, announced) if tag not in last} == {t for t in has(taken, announced) if t not in last}
    assert not set(given_back.add) & set(given_back.remove)


def has(order: NodeOrder, announced: tuple[str, ...]) -> set[str]:
    return set(announced) - set(order.remove) | set(order.add) - set(order.remove)


def test_why_tells_the_lease_its_history_what_is_waited_for_and_what_would_change_it():
    """Each with its reason, in the order in which one asks."""

    class Stored:
        time = 0.0

    said = RoleAssigned(run=RUN, node="n1", epoch=2, role=Role.TRAIN, tags=(), reason="a batch is ready", gang=("n1", "n2"))
    state = RunState(phase=RunPhase.RUNNING, reason="tag judge+rollout: no node has it", requested_at=0.0)
    lines = why.why_lines(views(orders={"n1": NodeOrder(remove=("judge",))})["n1"], [(Stored(), said)], state, 1042.0)

    assert lines[0] == (
        "n1: rollout for run demo, tags h800+rollout rollout, the run's trainer, epoch 3, for 42 s: no batch is ready"
    )
    text = "\n".join(lines)
    assert "epoch 2: train with gang n1 n2: a batch is ready" in text
    assert "run demo waits: tag judge+rollout: no node has it" in text and "trainer: waits for a batch" in text
    assert "seamlessflow tag n1 judge: judge was taken away" in text and "seamlessflow drain n1: takes it out" in text


def test_durations_are_words():
    """As people say them."""
    assert [duration_words(seconds) for seconds in (-1, 42.4, 185, 7800)] == ["0 s", "42 s", "3 min 5 s", "2 h 10 min"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[EmbeddedServer]:
    """A server with one node that is there, holds a lease, and was assigned a role."""
    started = EmbeddedServer(tmp_path_factory.mktemp("nats")).start()
    asyncio.run(prepare(started.url))
    yield started
    started.stop()


async def prepare(url: str) -> None:
    bus = await connect(url, name="test")
    for name in BUCKETS:
        await bus.kv(name)
    for status in (WORKER, TRAINER):
        await (await bus.kv(NODES_BUCKET)).put(f"n1.{status.service}", pack_record(status))
    await (await bus.kv(LEASES_BUCKET)).put("n1", pack_record(LEASE))
    state = RunState(phase=RunPhase.RUNNING, reason="no task was submitted yet", requested_at=0.0)
    await (await bus.kv(RUNS_BUCKET)).put(RUN, pack_record(state))
    await bus.ensure_stream(run_streams(RUN)[0])
    said = RoleAssigned(run=RUN, node="n1", epoch=3, role=Role.ROLLOUT, tags=("rollout",), reason="no batch is ready")
    await Journal(bus, Store("memory://")).publish(said)
    await bus.close()


@pytest.fixture
def json_of(server: EmbeddedServer, capsys):
    """What ``nodes --json`` says of n1."""

    def read() -> dict[str, object]:
        capsys.readouterr()
        fleet.nodes(server.url, as_json=True)
        (node,) = json.loads(capsys.readouterr().out)
        assert isinstance(node, dict)
        return node

    return read


def test_orders_are_kept_on_the_server_and_shown(server: EmbeddedServer, json_of, capsys):
    """Given, taken away, drained and undone: each says what the node is then."""
    node_tags.tag("n1", ["judge"], server.url)
    node_tags.untag("n1", ["train", "h800"], server.url)
    assert capsys.readouterr().out.splitlines() == [
        "n1: rollout, h800, train, +judge (by hand)",
        NO_SCHEDULER,
        "n1: rollout, +judge (by hand), -train (by hand), -h800 (by hand)",
        NO_SCHEDULER,
    ]
    node = json_of()
    assert (node["tags"], node["tags_added"], node["tags_removed"]) == (["rollout", "judge"], ["judge"], ["train", "h800"])
    assert (node["slots_used"], node["slots"], node["affinity_hit_rate"]) == (5, 32, 0.82)

    node_tags.drain("n1", server.url)
    assert json_of()["drained"] is True
    node_tags.drain("n1", server.url, undo=True)
    node_tags.tag("n1", ["train", "h800"], server.url)
    node_tags.untag("n1", ["judge"], server.url)
    node = json_of()
    assert (node["drained"], node["tags_added"], node["tags_removed"]) == (False, [], [])
    assert node["tags"] == ["rollout", "h800", "train"]


async def test_orders_of_two_people_at_once_both_count(server: EmbeddedServer):
    """Compare and set: nobody's is overwritten."""
    async with Client.open(server.url) as one, Client.open(server.url) as other:
        names = [f"x{number}" for number in range(6)]
        clients = [one, other] * 3
        await asyncio.gather(
            *(
                client.order("shared", lambda order, name=name: with_tags(order, (name,), ()))
                for client, name in zip(clients, names, strict=True)
            )
        )
        assert sorted((await one.orders())["shared"].add) == names
        await one.order("shared", lambda order: NodeOrder())


def test_why_reads_the_journals(server: EmbeddedServer, capsys):
    """The present lease, what it was given before and when, and what the run waits for."""
    why.why("n1", server.url)
    said = capsys.readouterr().out.replace("\n", " ")

    assert "n1: rollout for run demo" in said and "demo epoch 3: rollout (rollout)" in said
    assert "no task was submitted yet" in said


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda url: node_tags.drain("n2", url), "there is no node 'n2'; there are: n1"),
        (lambda url: why.why("n2", url), "there is no node 'n2'; there are: n1"),
        (lambda url: node_tags.tag("n1", ["H800"], url), "a-z, 0-9 and '-', got 'H800'"),
        (lambda url: node_tags.tag("n1", ["h800+rollout"], url), "a-z, 0-9 and '-'"),
        (lambda url: node_tags.untag("n1", ["serve"], url), "to take all work from a node, drain it"),
    ],
)
def test_a_mistake_is_refused_with_what_is_right(server: EmbeddedServer, order, said):
    """And nothing is ordered."""
    with pytest.raises(ConfigError) as refused:
        order(server.url)

    assert said in str(refused.value)
