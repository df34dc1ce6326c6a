"""What is odd of a fleet as people see it: unreadable values, tags by rule, typos, frozen generations, nobody to obey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.cli import node_tags
from seamlessflow.cli.node_tags import with_tags, without_tags
from seamlessflow.cli.nodes import node_views, tag_words
from seamlessflow.cli.why import why_lines
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.config.node_settings import hardware_of
from seamlessflow.config.tag_rules import parse_rule
from seamlessflow.contracts import Hardware, NodeOrder, NodeStatus
from seamlessflow.contracts.routes import BUCKETS, LEASES_BUCKET, NODES_BUCKET, ORDERS_BUCKET
from seamlessflow.errors import ConfigError
from seamlessflow.runtime.node_records import Unreadable
from seamlessflow.store.large_payloads import Store
from seamlessflow_scheduler.fleet_state import FleetState
from seamlessflow_scheduler.policy import Demand
from tests.cli.test_cli_fleet import LEASE, NO_SCHEDULER, TRAINER, WORKER

GARBAGE = b"\xff\x00junk"
SCHEDULER = NodeStatus(node="s", service="scheduler", instance="i", capabilities=("schedule",), pid=1)
RULES = {"demo": (("prefill", parse_rule("flops/bandwidth > 250")),)}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a server in memory with one node of two processes."""
    bus = MemoryBus()
    for status in (WORKER, TRAINER):
        await (await bus.kv(NODES_BUCKET)).put(f"n1.{status.service}", pack_record(status))
    await (await bus.kv(LEASES_BUCKET)).put("n1", pack_record(LEASE))
    yield Client(bus, Store("memory://"))


async def test_a_value_that_cannot_be_read_is_shown_at_its_node_and_stops_nobody(client: Client):
    """Whichever bucket it is in; all other nodes are as they were."""
    for bucket, key in ((ORDERS_BUCKET, "ghost"), (LEASES_BUCKET, "n2"), (NODES_BUCKET, "n3.trainer")):
        await (await client.bus.kv(bucket)).put(key, GARBAGE)
    unreadable = Unreadable()
    statuses, leases, ordered = (
        await client.statuses(unreadable),
        await client.leases(unreadable),
        await client.orders(unreadable),
    )
    seen = node_views(statuses, leases, ordered, unreadable=unreadable)

    assert [status.service for status in statuses] == ["rollout-worker", "trainer"] and list(leases) == ["n1"]
    assert seen["ghost"].why()[0].startswith("order unreadable: expected a NodeOrder")
    assert seen["n2"].why()[0].startswith("lease unreadable") and seen["n3"].why()[0].startswith("trainer unreadable")
    assert not seen["n1"].unreadable and len(await client.nodes()) == 2


async def test_an_order_that_cannot_be_read_is_overwritten_by_the_next_one(client: Client):
    """Also by one that orders nothing: then it can be read again."""
    bucket = await client.bus.kv(ORDERS_BUCKET)
    for change in (lambda order: order, lambda order: with_tags(order, ("h800",), ())):
        await bucket.put("n1", GARBAGE)
        ordered = await client.order("n1", change)
        assert (await client.orders())["n1"] == ordered


def test_a_tag_that_a_rule_gives_is_shown_with_its_run_and_can_be_taken_away():
    """At once, also when it was given by hand too; and the scheduler sees it the same way."""
    demand = Demand("demo", "multiplexed", tags=("prefill+rollout",), tag_rules=RULES["demo"])
    fleet = FleetState(10.0)

    def look(order: NodeOrder) -> tuple[list[str], tuple[str, ...]]:
        view = node_views([WORKER, TRAINER], {}, {"n1": order}, rules=RULES)["n1"]
        fleet.observe([WORKER, TRAINER], 0.0, (), {"n1": order})
        (node,) = fleet.nodes({}, {})
        assert ("prefill" in view.tags) == bool(demand.served_by(node))
        return tag_words(view), (*view.announced, *view.ruled)

    words, otherwise = look(NodeOrder())
    assert "prefill (rule of demo)" in words
    by_hand = with_tags(NodeOrder(), ("prefill",), ("rollout", "h800", "train"))
    assert "+prefill (by hand)" in look(by_hand)[0]
    for before in (NodeOrder(), by_hand):
        gone = without_tags(before, ("prefill",), otherwise)
        assert look(gone)[0] == ["rollout", "h800", "train", "-prefill (by hand)"]


def test_what_a_node_is_does_not_depend_on_which_process_spoke_last():
    """Of each fact the worker's word counts, else the trainer's; scheduler and people see the same."""
    trainer = TRAINER.model_copy(update={"hardware": Hardware(device="H800", memory_bytes=80e9, bandwidth_bytes=1.0)})
    worker = WORKER.model_copy(update={"hardware": Hardware(device="H800 PCIe", flops=990e12, bandwidth_bytes=3.35e12)})
    expected = Hardware(device="H800 PCIe", memory_bytes=80e9, flops=990e12, bandwidth_bytes=3.35e12)
    fleet = FleetState(10.0)
    for place, said in enumerate([[worker, trainer], [trainer, worker], [trainer]]):  # the last: the worker restarts
        fleet.observe(said, float(place))
        assert fleet.nodes({}, {})[0].hardware == expected
        assert len(said) == 1 or node_views(said, {}, {})["n1"].hardware == expected
    assert hardware_of({}) is None


def test_why_says_how_many_generations_a_frozen_worker_keeps():
    """It looks as if it did nothing."""
    frozen = WORKER.model_copy(update={"state": "frozen"})

    assert "rollout-worker: frozen with 5 generations" in node_views([frozen], {"n1": LEASE}, {})["n1"].why()


def test_why_of_a_node_that_never_had_a_lease_says_it_once_and_what_was_taken_away():
    """And asks for no run where none could use it."""
    idle = WORKER.model_copy(update={"state": ""})
    lines = why_lines(node_views([idle], {}, {})["n1"], [], None, 0.0)
    assert lines[0] == "n1 holds nothing and never did: no run has needed it yet" and "needed" not in "".join(lines[1:])

    lines = why_lines(node_views([idle], {}, {"n1": NodeOrder(remove=("rollout",))})["n1"], [], None, 0.0)
    assert lines[0].endswith("nothing is left that it may do; taken away by hand: rollout")
    assert "seamlessflow tag n1 rollout: rollout was taken away from it by hand" in "\n".join(lines)
    assert "a run that needs such a node" not in "\n".join(lines)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[EmbeddedServer]:
    """A server with one node and no scheduler."""
    started = EmbeddedServer(tmp_path_factory.mktemp("nats")).start()
    asyncio.run(publish(started.url, WORKER))
    yield started
    started.stop()


async def publish(url: str, status: NodeStatus) -> None:
    bus = await connect(url, name="test")
    for name in BUCKETS:
        await bus.kv(name)
    await (await bus.kv(NODES_BUCKET)).put(f"{status.node}.{status.service}", pack_record(status))
    await bus.close()


def test_an_order_says_what_it_did_not_find_and_who_is_not_there_to_obey(server: EmbeddedServer, capsys):
    """A typo is seen, a scheduler that is away is named, and one of its own takes no tags."""
    node_tags.untag("n1", ["h80"], server.url)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "n1: rollout, h800, -h80 (by hand)" and said[1] == NO_SCHEDULER
    assert said[2] == "n1: it did not have h80; it stays without, should it ever get it (seamlessflow tag n1 h80)"
    node_tags.untag("n1", ["h80", "h800"], server.url)
    assert "did not have" not in capsys.readouterr().out, "what it had, and what was said before"

    asyncio.run(publish(server.url, SCHEDULER))
    node_tags.drain("n1", server.url)
    assert NO_SCHEDULER not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="s has only a scheduler, which takes no work"):
        node_tags.tag("s", ["h800"], server.url)
