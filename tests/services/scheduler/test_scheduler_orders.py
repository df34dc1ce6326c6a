"""Orders, tags and doubled names with the scheduler as a process over a bus."""

from __future__ import annotations

import asyncio
import time
import types

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.codec import pack_record
from seamlessflow.contracts import EpisodeOpened, NodeOrder, NodeStatus, Role, RoleAssigned, Service
from seamlessflow.contracts.fleet import CONFLICT
from seamlessflow.contracts.routes import NODES_BUCKET, ORDERS_BUCKET
from seamlessflow.contracts.streams import queue_stream
from seamlessflow.runtime import Presence, presence
from tests.services.scheduler.scheduler_bench import MACHINE, TRAINER, WORKER, Bench, until
from tests.services.scheduler.scheduler_world import RUN, task

TWO = {**MACHINE, ("gpu2", WORKER): "rollout", ("gpu2", TRAINER): "train"}


async def order(bench: Bench, node: str, given: NodeOrder) -> None:
    await (await bench.bus.kv(ORDERS_BUCKET)).put(node, pack_record(given))


async def test_an_order_is_carried_out_within_two_seconds_and_said_with_its_reason(bench: Bench):
    """At the pace of a deployment; undone as soon."""
    await bench.start(tick_seconds=0.5)
    await bench.announce(TWO)
    await bench.request()

    async def role(wanted: Role, run: str | None) -> bool:
        lease = await bench.lease("gpu2")
        return lease is not None and (lease.role, lease.run) == (wanted, run)

    await until(lambda: role(Role.ROLLOUT, RUN))
    began = time.monotonic()
    await order(bench, "gpu2", NodeOrder(drain=True))
    await until(lambda: role(Role.IDLE, None))
    drained_after = time.monotonic() - began
    began = time.monotonic()
    await order(bench, "gpu2", NodeOrder())
    await until(lambda: role(Role.ROLLOUT, RUN))

    assert drained_after < 2.0 and time.monotonic() - began < 2.0
    published = [(e.role, e.reason) for e in await bench.events(RUN, RoleAssigned) if e.node == "gpu2"]
    assert published[1] == (Role.IDLE, "drained by hand")


async def test_an_order_that_cannot_be_read_is_passed_over(bench: Bench):
    """The others count, and the scheduler goes on."""
    await (await bench.bus.kv(ORDERS_BUCKET)).put("gpu", b"\xff\xfe")
    await order(bench, "gpu2", NodeOrder(drain=True))
    await bench.start()
    await bench.announce(TWO)
    await bench.request()

    async def leased() -> bool:
        return await bench.lease("gpu") is not None

    await until(leased)
    assert await bench.lease("gpu2") is None


async def test_agents_with_tags_get_consumers_episodes_and_leases_of_these(bench: Bench):
    """From the run file to the subject; a tag that no node has is among what the run waits for within seconds."""
    agents = [
        {"env": "single", "entrypoint": "a:b"},
        {"env": "check", "entrypoint": "a:c", "tag": "rollout+h800"},
    ]
    await bench.start()
    await bench.announce()
    await bench.request(agents=agents, evaluation={"before": False, "after": False})
    await bench.journal.publish_all([task("t1"), task("t2", env="check")])

    async def waits() -> bool:
        state = await bench.state()
        return state is not None and "seamlessflow tag gpu h800" in state.reason

    await until(waits)
    await order(bench, "gpu", NodeOrder(add=("h800",)))

    async def served() -> bool:
        lease, opened = await bench.lease("gpu"), await bench.events(RUN, EpisodeOpened)
        return lease is not None and lease.tags == ("h800+rollout", "rollout") and len(opened) == 4

    await until(served)
    opened = await bench.events(RUN, EpisodeOpened)
    assert {(event.env, event.tag) for event in opened} == {("single", "rollout"), ("check", "h800+rollout")}
    stream = queue_stream(Service.ROLLOUT_WORKER, RUN)
    assert [await bench.bus.pending(stream, name) for name in ("gen-rollout-0", "gen-t1-0")] == [0, 0]


async def test_a_process_whose_clock_is_an_hour_off_is_there_like_any_other(bench: Bench, monkeypatch):
    """Its clock is not used: presence runs out by the server's clock, and silence is measured by the scheduler's."""
    wrong = types.SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + 3600.0)
    monkeypatch.setattr(presence, "time", wrong)
    await bench.start(quiet_seconds=2.1)
    await bench.announce({key: value for key, value in MACHINE.items() if key[1] != WORKER})
    status = NodeStatus(node="gpu", service=WORKER, instance="i", capabilities=("rollout",), pid=1)
    renewing = asyncio.create_task(Presence(MemoryBus(bench.server), status).run())
    await bench.request()

    async def rolls_out() -> bool:
        lease = await bench.lease("gpu")
        return lease is not None and lease.role is Role.ROLLOUT

    await until(rolls_out)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)


async def test_two_processes_under_one_name_are_told_of_and_the_run_goes_on(bench: Bench):
    """Both instances are named where `seamlessflow nodes` finds them; no lease changes."""
    context = await bench.start()
    await bench.announce()
    await bench.request()
    bucket, fact = await bench.bus.kv(NODES_BUCKET), f"{CONFLICT}gpu.{WORKER}"
    status = NodeStatus(node="gpu", service=WORKER, instance="one", capabilities=("rollout",), pid=1)
    turn = 0

    async def told() -> bool:
        nonlocal turn
        turn += 1
        instance = ("one", "two")[turn // 10 % 2]
        await bucket.put(f"gpu.{WORKER}", pack_record(status.model_copy(update={"instance": instance})))
        return context.presence.status.facts.get(fact) == "one and two"

    await until(told)
    lease = await bench.lease("gpu")
    assert lease is not None and lease.epoch == 1


async def test_an_order_that_cannot_be_read_leaves_its_node_as_it_was_ordered_last(bench: Bench):
    """A drained node stays so, and orders of other nodes are obeyed."""
    await bench.start()
    await bench.announce(TWO)
    await bench.request()
    await order(bench, "gpu2", NodeOrder(drain=True))

    async def is_drained(node: str) -> bool:
        lease = await bench.lease(node)
        return lease is None or lease.run is None

    await until(lambda: is_drained("gpu2"))
    await (await bench.bus.kv(ORDERS_BUCKET)).put("gpu2", b"\xff\x00junk")
    await order(bench, "agents", NodeOrder(drain=True))
    await until(lambda: is_drained("agents"))

    assert await is_drained("gpu2") and not await is_drained("gpu")
