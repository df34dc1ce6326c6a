"""The services of a timed run as parts of a process, each on a connection of its own, so that each can die alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.config.run import RunConfig
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import Service
from seamlessflow.contracts.subjects import inbox_prefix
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.models.tiny import CHARACTERS, SPECIAL_TOKENS, VOCAB_SIZE
from seamlessflow.runtime import Context, make_context

from .timed_cell import Cell
from .timed_clock import length_in

END_SECONDS = 10.0
WORDS = [len(SPECIAL_TOKENS) + CHARACTERS.index(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything is, and which parts are here."""

    nats_url: str
    store_url: str
    folder: str
    cell: dict[str, Any]
    parts: list[str]
    """scheduler, manager, players, worker/NODE, trainer/NODE."""


@dataclass
class Part:
    """One service with its own connection."""

    bus: JetStreamBus
    context: Context
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def end(self) -> None:
        """Orderly, within a while."""
        self.context.stopping.set()
        await asyncio.wait(self.tasks[:1], timeout=END_SECONDS)
        await self._cancel()
        await self.bus.close()

    async def die(self) -> None:
        """As a killed process would: nothing is said any more."""
        await self.bus.abort()
        await self._cancel()

    async def _cancel(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks, timeout=END_SECONDS)


class Parts:
    """All parts of this process, by name."""

    def __init__(self, place: Place) -> None:
        self._place, self._cell = place, Cell.from_json(place.cell)
        self._there: dict[str, Part] = {}
        self._failed: list[str] = []

    async def start(self, name: str) -> None:
        kind, _, node = name.partition("/")
        make = {
            "scheduler": self._scheduler,
            "manager": self._manager,
            "players": self._players,
            "worker": self._worker,
            "trainer": self._trainer,
        }[kind]
        await make(name, node or kind)

    async def die(self, node: str) -> None:
        doomed = [self._there.pop(name) for name in list(self._there) if name.partition("/")[2] == node]
        await asyncio.gather(*(part.die() for part in doomed))

    async def end(self) -> None:
        await asyncio.gather(*(part.end() for part in self._there.values()), return_exceptions=True)

    @property
    def failures(self) -> list[str]:
        """What parts ended with that were not asked to."""
        return self._failed

    async def _open(
        self, name: str, service: Service, settings: Settings, capabilities: tuple[str, ...]
    ) -> tuple[JetStreamBus, Context]:
        bus = await connect(self._place.nats_url, name=name, inbox_prefix=inbox_prefix(service), on_closed=lambda: None)
        return bus, make_context(service, settings, bus, capabilities=capabilities)

    def _run(self, name: str, bus: JetStreamBus, context: Context, work: Awaitable[None]) -> None:
        part = self._there[name] = Part(bus, context)
        part.tasks = [asyncio.ensure_future(work), asyncio.create_task(context.presence.run())]
        part.tasks[0].add_done_callback(lambda task: self._on_done(name, part, task))

    def _on_done(self, name: str, part: Part, task: asyncio.Future[None]) -> None:
        if task.cancelled() or self._there.get(name) is not part or (failure := task.exception()) is None:
            return
        if not isinstance(failure, SeamlessFlowError) or not part.context.stopping.is_set():
            self._failed.append(f"{name}: {failure!r}")

    def _settings(self, kind: Callable[..., Settings], node: str, **more: Any) -> Any:
        place = self._place
        return kind(
            nats_url=place.nats_url,
            store_url=place.store_url,
            node=node,
            instance=node,
            work_dir=Path(place.folder) / "work",
            model_cache=Path(place.folder),
            log_level="warning",
            **more,
        )

    async def _scheduler(self, name: str, node: str) -> None:
        from seamlessflow_scheduler.config import SchedulerSettings
        from seamlessflow_scheduler.service import Scheduler

        settings = self._settings(SchedulerSettings, node, tick_seconds=self._cell.tick_seconds)
        bus, context = await self._open(name, Service.SCHEDULER, settings, ("schedule",))
        self._run(name, bus, context, Scheduler(context, settings).run())

    async def _manager(self, name: str, node: str) -> None:
        from seamlessflow_trajectory_manager.config import ManagerSettings
        from seamlessflow_trajectory_manager.service import TrajectoryManager

        settings = self._settings(ManagerSettings, node)
        bus, context = await self._open(name, Service.TRAJECTORY_MANAGER, settings, ("manage",))
        self._run(name, bus, context, TrajectoryManager(context).run())

    async def _players(self, name: str, node: str) -> None:
        from .timed_players import Players

        settings = self._settings(Settings, node)
        bus, context = await self._open(name, Service.AGENT_RUNNER, settings, ("agents",))
        self._run(name, bus, context, Players(context, self._cell).run())

    async def _worker(self, name: str, node: str) -> None:
        from seamlessflow_rollout_worker.config import WorkerSettings
        from seamlessflow_rollout_worker.generations.generation_state import Pace
        from seamlessflow_rollout_worker.service import RolloutWorker

        settings = self._settings(WorkerSettings, node)
        bus, context = await self._open(name, Service.ROLLOUT_WORKER, settings, ("rollout",))
        pace = Pace(many=1, few=1, few_seconds=0.0, longest_seconds=0.0)  # the engine reports seldom enough
        self._run(name, bus, context, RolloutWorker(context, settings, build=self._build_engine, pace=pace).run())

    async def _trainer(self, name: str, node: str) -> None:
        from seamlessflow_trainer.config import TrainerSettings
        from seamlessflow_trainer.service import Trainer

        from .timed_learner import TimedLearner, TimedState

        cell = self._cell
        settings = self._settings(TrainerSettings, node, device="cpu")
        bus, context = await self._open(name, Service.TRAINER, settings, ("train",))
        trainer = Trainer(
            context,
            settings,
            build=lambda *_: TimedLearner(cell.cost, cell.scale, vocab_size=VOCAB_SIZE),
            occupant=TimedState(cell.cost, cell.scale),
        )
        self._run(name, bus, context, trainer.run())

    def _build_engine(self, config: RunConfig, settings: Any, folder: Path) -> Any:
        from .timed_engine import TimedEngine

        budget = config.sampling.max_tokens
        return TimedEngine(
            self._cell.cost,
            self._cell.scale,
            words=WORDS,
            vocab_size=VOCAB_SIZE,
            num_slots=config.fleet.slots,
            max_context_tokens=config.model.max_context_tokens,
            length_of=lambda seed, left: length_in(seed) - (budget - left),
        )
