"""The real scheduler over the bus in memory, with a fleet that is announced by hand and worlds that obey the leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import (
    Event,
    Lease,
    NodeStatus,
    Role,
    RunEnded,
    RunRequested,
    RunState,
    Service,
    StepTaken,
    TasksEnded,
)
from seamlessflow.contracts.routes import LEASES_BUCKET, NODES_BUCKET, RUNS_BUCKET
from seamlessflow.contracts.streams import control_streams, journal_stream
from seamlessflow.runtime import Context, Journal, make_context
from seamlessflow.store.large_payloads import Store
from seamlessflow_scheduler.config import SchedulerSettings
from seamlessflow_scheduler.leadership import LEADER_KEY
from seamlessflow_scheduler.service import Scheduler
from tests.services.scheduler.scheduler_world import RUN, Agents, Trainer, document, tasks

WORKER, TRAINER, RUNNER, MANAGER = "rollout-worker", "trainer", "agent-runner", "trajectory-manager"
MACHINE = {("gpu", WORKER): "rollout", ("gpu", TRAINER): "train", ("agents", RUNNER): "serve", ("trees", MANAGER): "serve"}
ROUNDS = {"evaluation": {"before": True, "after": True}}


async def until(holds: Callable[[], Awaitable[bool]], *, seconds: float = 20.0) -> None:
    """Wait for a condition; fails loudly when it does not come."""
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.005)


class Bench:
    """One server, any number of schedulers, and what tests ask of it."""

    def __init__(self, folder: Path) -> None:
        self.server = MemoryServer()
        self.bus = MemoryBus(self.server)
        self.store_url = f"file://{folder}"
        self.journal = Journal(self.bus, Store(self.store_url))
        self.running: list[tuple[MemoryBus, asyncio.Task[None], Context]] = []
        self.worlds: list[asyncio.Task[None]] = []

    async def start(self, name: str = "s1", **settings: Any) -> Context:
        """Start a scheduler process."""
        for stream in control_streams():
            await self.bus.ensure_stream(stream)
        fast = {"tick_seconds": 0.02, "leader_ttl_seconds": 1, "queue_grace_seconds": 0.05, "gone_seconds": 0.3}
        made = SchedulerSettings(store_url=self.store_url, node=name, instance=name, **{**fast, **settings})
        bus = MemoryBus(self.server)
        context = make_context(Service.SCHEDULER, made, bus, capabilities=("schedule",))
        self.running.append((bus, asyncio.create_task(Scheduler(context, made).run()), context))
        return context

    async def kill(self) -> None:
        """As kill -9 does: the connection is gone, nothing is handed back; the leader's key runs out."""
        bus, task, _ = self.running.pop(0)
        await bus.abort()
        task.cancel()
        with suppress(BaseException):
            await task
        await (await self.bus.kv(LEASES_BUCKET)).delete(LEADER_KEY)

    async def announce(self, processes: dict[tuple[str, str], str] = MACHINE) -> None:
        bucket = await self.bus.kv(NODES_BUCKET)
        for (node, service), capability in processes.items():
            status = NodeStatus(node=node, service=service, instance="i", capabilities=(capability,), pid=1)
            await bucket.put(f"{node}.{service}", pack_record(status))

    async def vanish(self, node: str, service: str) -> None:
        await (await self.bus.kv(NODES_BUCKET)).delete(f"{node}.{service}")

    async def request(self, run: str = RUN, **sections: Any) -> None:
        await self.journal.publish(RunRequested(run=run, document=document(**sections)))
        await until(lambda: self.has_journal(run))

    async def submit(self, run: str = RUN, *, train: int = 8, held_out: int = 0) -> None:
        for name in ("before", "after"):
            await self.journal.publish_all(tasks(f"{name}-", held_out, evaluation=name, run=run))
        await self.journal.publish_all([*tasks("t", train, run=run), TasksEnded(run=run)])

    def live(self, run: str = RUN, *, failing: float = 0.1, **sections: Any) -> None:
        """Let agents and trainer of a run act as long as their leases name it."""
        self.worlds.append(asyncio.create_task(self._live(run, failing, sections)))

    async def _live(self, run: str, failing: float, sections: dict[str, Any]) -> None:
        config, rng = parse_run_config(document(**sections)), Random(run)
        agents, trainer, fed = Agents(config, rng, failing=failing), Trainer(config, rng, run), 0
        while True:
            await asyncio.sleep(0.001)
            if not await self.has_journal(run):
                continue
            history = await self.events(run)
            for event in history[fed:]:
                agents.feed(event)
                trainer.feed(event)
            fed = len(history)
            gpu, serving = await self.lease("gpu"), await self.lease("agents")
            if serving is not None and serving.run == run:
                await self.journal.publish_all(agents.due())
            if gpu is not None and gpu.run == run and gpu.trainer:
                published = trainer.due(has_device=gpu.role is Role.TRAIN)
                await self.journal.publish_all(published)
                assert not published or not isinstance(published[0], StepTaken) or gpu.role is Role.TRAIN

    async def has_journal(self, run: str = RUN) -> bool:
        return journal_stream(run) in await self.bus.stream_names()

    async def events(self, run: str = RUN, kind: type[Event] = Event) -> list[Any]:
        opened = []
        async for record in self.bus.read(journal_stream(run)):
            with suppress(Exception):
                opened.append(await self.journal.open(record))
        return [event for event in opened if isinstance(event, kind)]

    async def lease(self, node: str) -> Lease | None:
        entry = await (await self.bus.kv(LEASES_BUCKET)).get(node)
        return None if entry is None else unpack_record(Lease, entry.value)

    async def state(self, run: str = RUN) -> RunState | None:
        entry = await (await self.bus.kv(RUNS_BUCKET)).get(run)
        return None if entry is None else unpack_record(RunState, entry.value)

    async def until_ended(self, run: str = RUN) -> RunEnded:
        async def ended() -> bool:
            return await self.has_journal(run) and bool(await self.events(run, RunEnded))

        await until(ended)
        ended_event: RunEnded = (await self.events(run, RunEnded))[0]
        return ended_event

    async def close(self) -> None:
        for task in [*self.worlds, *(task for _, task, _ in self.running)]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for bus, _, _ in self.running:
            await bus.close()
        await self.bus.close()
