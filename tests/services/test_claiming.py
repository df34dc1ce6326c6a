"""Names: who starts under the name of another that is there refuses to, and a restart does not wait longer than it must."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import pack_record
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import NodeStatus
from seamlessflow.contracts.routes import NODES_BUCKET
from seamlessflow.errors import ConfigError
from seamlessflow.local.instance_names import instance_name, is_dead, is_here
from seamlessflow.runtime import Presence, presence
from seamlessflow.runtime.presence import claim
from seamlessflow_scheduler.fleet_monitor import DuplicateProcesses


def status(instance: str, pid: int = 1) -> NodeStatus:
    return NodeStatus(node="n1", service="rollout-worker", instance=instance, capabilities=("rollout",), pid=pid)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


async def leave_behind(server: MemoryServer, former: NodeStatus) -> None:
    """A presence that nobody renews, as a kill leaves it."""
    bucket = await MemoryBus(server).kv(NODES_BUCKET)
    await bucket.put("n1.rollout-worker", pack_record(former), ttl_seconds=5)


async def test_the_second_of_one_name_refuses_to_start_and_names_the_first(server: MemoryServer):
    """With what to do; the first is not disturbed at all."""
    first = asyncio.create_task(Presence(MemoryBus(server), status("host-a-7", 7)).run())
    await asyncio.sleep(0.05)

    with pytest.raises(ConfigError, match=r"n1 has a rollout-worker already: instance host-a-7 .pid 7.*SEAMLESSFLOW_NODE"):
        await claim(MemoryBus(server), status("host-b-7", 7))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_after_an_orderly_end_nobody_waits(server: MemoryServer):
    """The goodbye took the name away."""
    began = time.monotonic()
    await claim(MemoryBus(server), status("host-b-7"))

    assert time.monotonic() - began < 0.5


async def test_the_name_of_a_process_that_died_elsewhere_is_free_when_it_was_silent_long_enough(
    server: MemoryServer, monkeypatch
):
    """Nobody renews it."""
    monkeypatch.setattr(presence, "GAP_SECONDS", 0.3)
    await leave_behind(server, status("host-a-7"))
    began = time.monotonic()
    await claim(MemoryBus(server), status("host-b-7"))

    assert 0.3 <= time.monotonic() - began < 2.0


async def test_a_restart_on_the_same_machine_does_not_wait_for_the_dead(server: MemoryServer):
    """Its process id tells."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    await leave_behind(server, status(instance_name("host", child.pid), child.pid))
    began = time.monotonic()
    await claim(MemoryBus(server), status(instance_name("host", os.getpid()), os.getpid()))

    assert time.monotonic() - began < 0.5


async def test_a_server_without_the_bucket_holds_up_nobody(server: MemoryServer, monkeypatch):
    """Where only the scheduler may make it, and it has not yet."""
    monkeypatch.setattr(presence, "GAP_SECONDS", 0.1)
    monkeypatch.setattr(presence, "SPARE_SECONDS", 0.1)

    class Never(MemoryBus):
        async def kv(self, bucket: str):
            await asyncio.Event().wait()

    await claim(Never(server), status("host-b-7"))


STRANGERS = {
    "another machine of this host name": "host-{pid}-0badcafe-0f0f0f",
    "a machine that cannot say where it is": "host-{pid}-x-0f0f0f",
    "a name that was given": "{pid}",
}


@pytest.mark.parametrize("name", STRANGERS.values(), ids=STRANGERS)
async def test_a_process_id_of_elsewhere_tells_nothing_so_its_presence_is_watched(server: MemoryServer, name: str):
    """Clones of one image share a host name, and every container has a process 1: theirs live although ours do not."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    other = status(name.format(pid=child.pid), child.pid)
    assert not is_here(other.instance) and not is_dead(other.instance, other.pid)
    first = asyncio.create_task(Presence(MemoryBus(server), other).run())
    await asyncio.sleep(0.05)

    with pytest.raises(ConfigError, match="n1 has a rollout-worker already"):
        await claim(MemoryBus(server), status(instance_name("host", os.getpid()), os.getpid()))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


def test_two_starts_of_one_host_and_pid_are_two_instances_that_alternate():
    """So the scheduler sees a name that two containers have; within one process the name stays."""
    script = "from seamlessflow.local.instance_names import instance_name; print(instance_name('host', 1))"
    starts = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() for _ in range(2)]
    assert starts[0] != starts[1] and all(is_here(each) for each in starts)
    assert Settings().instance == Settings().instance and is_here(Settings().instance)

    doubles = DuplicateProcesses()
    found = [doubles.observe({("n1", "rollout-worker"): starts[at % 2]}, float(at)) for at in range(4)]
    assert found[-1] == {("n1", "rollout-worker"): tuple(sorted(starts))}
