"""Several nodes take a step together: real services and a real model on three nodes, killed in the middle of their hand-overs.

The torch learner takes its steps alone, so the second node of the gang holds its device and nothing more; who holds which
device when, and what becomes of generations and samples, is the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.cli.run_location import Address, Folder
from seamlessflow.codec import decode, unpack_record
from seamlessflow.contracts import (
    DeadLetter,
    Event,
    NodeStatus,
    Role,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    RunEnded,
    Service,
    StepTaken,
)
from seamlessflow.contracts.routes import NODES_BUCKET
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter

from .conftest import environment
from .short_runs import Journal, short_run

pytestmark = [pytest.mark.system, pytest.mark.slow]

NODES = ("local-0", "local-1", "local-2")
STEPS = 14
RUN_SECONDS = 600
ROLES = (RoleAssigned, RoleTaken, RoleReleased, RunEnded)


@pytest.fixture(autouse=True)
def in_the_folder_of_the_runs(tmp_path, monkeypatch):
    """Where ``reach`` looks for them."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("policy", ["multiplexed", "colocated"])
async def test_a_gang_survives_the_sudden_death_of_each_of_its_processes_in_a_hand_over(policy, train, tmp_path):
    """kill -9 of the lead's trainer, of the member's trainer and of the member's rollout-worker, each as soon as its node was
    told to change hands and before it did: every step is taken once, and every token is accounted for."""
    algorithm = {"steps": STEPS, "groups_per_step": 4, "group_size": 4}
    config = short_run(tmp_path, algorithm=algorithm, fleet={"policy": policy, "train_nodes": 2})
    training = train(config, "gang", "--slices", str(len(NODES)))
    async with fleet_of(training) as fleet:
        deaths = await asyncio.wait_for(fleet.kill_in_hand_overs(), RUN_SECONDS)
        summary = await asyncio.to_thread(training.finish, RUN_SECONDS)

    told = await Journal.of("gang")
    assert deaths == ["member's trainer", "member's rollout-worker", "lead's trainer"], training.text()[-3000:]
    assert (summary["reason"], summary["steps"]) == ("completed", STEPS)
    assert sorted({step.step for step in told.all(StepTaken)}) == list(range(1, STEPS + 1))
    ledger = told.ledger
    assert ledger.balanced and ledger.gaps == ()
    assert (ledger.episodes.in_flight, ledger.tokens.in_flight) == (0, 0)
    assert told.all(DeadLetter) == []
    assert any(len(assigned.gang) == 2 for assigned in told.all(RoleAssigned))
    assert holders_never_overlap(told.events)


def holders_never_overlap(events) -> bool:
    """As far as services said it: no trainer of a node takes its device while the worker of that node says that it has it.

    A killed one says nothing; then the other's word is the first that is heard of it, under a later epoch.
    """
    holder: dict[str, tuple[str, int]] = {}
    for event in events:
        if isinstance(event, RoleReleased) and holder.get(event.node, ("", 0))[0] == event.service:
            del holder[event.node]
        elif isinstance(event, RoleTaken):
            service, epoch = holder.get(event.node, (event.service, event.epoch))
            if service != event.service and event.epoch <= epoch:
                return False
            holder[event.node] = (event.service, event.epoch)
    return True


@dataclass
class GangFleet:
    """The fleet of a training: its own services, and trainers of the nodes that it gives none."""

    bus: JetStreamBus
    address: Address
    work: Path
    logs: Path
    _trainers: list[asyncio.Task[None]] = field(default_factory=list)

    def start_trainers(self, *nodes: str) -> None:
        """Each is started again when it dies, as a supervisor would."""
        self._trainers = [asyncio.create_task(self._keep(node)) for node in nodes]

    async def stop(self) -> None:
        for keeping in self._trainers:
            keeping.cancel()
        await asyncio.gather(*self._trainers, return_exceptions=True)

    async def kill_in_hand_overs(self) -> list[str]:
        """Follow the roles; kill one process after the other, each in a hand-over of its own; returns who was killed."""
        deaths: list[str] = []
        patterns = [subject_filter(kind, run="gang") for kind in ROLES]
        async for record in self.bus.read(journal_stream("gang"), filters=patterns, follow=True):
            event = decode(record.subject, record.payload, record.headers)
            if isinstance(event, RunEnded) or len(deaths) == 3:
                break
            if (who := _victim(event, len(deaths))) is not None:
                name, node, service = who
                if await self._kill(node, service):
                    deaths.append(name)
        return deaths

    async def _kill(self, node: str, service: Service) -> bool:
        entry = await (await self.bus.kv(NODES_BUCKET)).get(f"{node}.{service.value}")
        if entry is None:
            return False  # still on its way back from an earlier death
        with suppress(ProcessLookupError):
            os.kill(unpack_record(NodeStatus, entry.value).pid, signal.SIGKILL)
            return True
        return False

    async def _keep(self, node: str) -> None:
        assert self.address.store_url is not None
        env = {
            **environment(),
            "SEAMLESSFLOW_NATS_URL": self.address.nats_url,
            "SEAMLESSFLOW_STORE_URL": self.address.store_url,
            "SEAMLESSFLOW_WORK_DIR": str(self.work),
            "SEAMLESSFLOW_NODE": node,
            "OMP_NUM_THREADS": "1",
        }
        while True:
            with (self.logs / f"trainer-{node}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "seamlessflow_trainer", env=env, stdout=log, stderr=subprocess.STDOUT
                )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


def _victim(event: Event, num_deaths: int) -> tuple[str, str, Service] | None:
    """Who is to die now that this was said: the node was told to train, and did not begin yet."""
    if not isinstance(event, RoleAssigned) or event.role is not Role.TRAIN or len(event.gang) < 2:
        return None
    is_lead = event.gang[0] == event.node
    wanted = (
        ("member's trainer", False, Service.TRAINER),
        ("member's rollout-worker", False, Service.ROLLOUT_WORKER),
        ("lead's trainer", True, Service.TRAINER),
    )[num_deaths]
    name, of_lead, service = wanted
    return (name, event.node, service) if of_lead == is_lead else None


@asynccontextmanager
async def fleet_of(training) -> AsyncIterator[GangFleet]:
    """The fleet of a training that has just begun."""
    folder = Folder(training.folder)
    async with asyncio.timeout(120):
        while (address := folder.living_address()) is None:
            assert training.process.poll() is None, training.text()[-3000:]
            await asyncio.sleep(0.1)
        bus = await connect(address.nats_url, name="test")
        while journal_stream("gang") not in await bus.stream_names():
            await asyncio.sleep(0.1)
    fleet = GangFleet(bus, address, folder.work.resolve(), training.folder)
    fleet.start_trainers(*NODES[:-1])
    try:
        yield fleet
    finally:
        await fleet.stop()
        await bus.close()
