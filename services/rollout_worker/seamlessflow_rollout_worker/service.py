"""The rollout-worker: one engine, in one run at a time, sampling while its node's lease says so.

lease ──▶ moves (roles) ──▶ carried out one after the other; a newer lease cuts short what only waits
a run whose model cannot be served ──▶ ask for the end of the run, saying why, and wait for another lease
engine dies ──▶ hand back what can be, exit with an error, so that the supervisor starts another
SIGTERM ──▶ stop pulling, flush, nak, leave
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import structlog

from seamlessflow.contracts import Lease, Role, RoleReleased, RoleTaken, Service
from seamlessflow.errors import BadInput
from seamlessflow.runtime import Context, DeviceLock, LeaseWatch, read_run, stop_run

from .config import WorkerSettings
from .engines.base import EngineError
from .engines.factory import BuildEngine, build_engine
from .generations.generation_state import Pace
from .run import Tenure
from .worker_monitor import Watchman

# What a lease asks of a worker, as a list of moves: pure, so that every order of leases can be tested.
#
# idle ──JOIN──▶ in a run, device not ours ──TAKE, PULL──▶ sampling
#  ▲                 ▲        ▲                               │
#  │                 │        └── STOP, FREEZE, RELEASE ──────┤   generations stay in the engine, pings go on
#  │                 └── STOP, HAND_BACK, RELEASE ────────────┤   generations go back to the queue
#  └── LEAVE ◀───────────── STOP, HAND_BACK, RELEASE ◀────────┘   the lease names another run, or none


class Move(StrEnum):
    """One thing to do; each may be repeated without harm."""

    STOP = "stop pulling"
    FREEZE = "freeze the engine with what it holds"
    HAND_BACK = "flush, nak, and put the engine to sleep"
    RELEASE = "let go of the device, and say RoleReleased"
    LEAVE = "leave the run and drop its engine"
    JOIN = "read the run and begin to fetch its model"
    TAKE = "take the device, load the newest weights, sample, and say RoleTaken"
    PULL = "pull generations of the lease's tags"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker stands."""

    run: str | None = None
    holds_device: bool = False
    holds_generations: bool = False
    """Sampling them, or frozen with them."""


def moves(standing: Standing, lease: Lease) -> tuple[Move, ...]:
    """What brings a worker from where it stands to what the lease says, in order."""
    wants_device = lease.run is not None and lease.role is Role.ROLLOUT
    plan: list[Move] = []
    is_leaving = standing.run is not None and standing.run != lease.run
    if is_leaving:
        plan += [Move.STOP, Move.HAND_BACK, *([Move.RELEASE] if standing.holds_device else []), Move.LEAVE]
    if lease.run is not None and standing.run != lease.run:
        plan.append(Move.JOIN)
    if wants_device:
        plan += [Move.TAKE, Move.PULL]
    elif lease.run is not None:
        if not is_leaving and standing.run is not None:
            plan += _let_go(standing, lease)
        plan.append(Move.RELEASE)
    return tuple(plan)


def _let_go(standing: Standing, lease: Lease) -> list[Move]:
    if lease.hand_back and (standing.holds_device or standing.holds_generations):
        return [Move.STOP, Move.HAND_BACK]
    return [Move.STOP, Move.FREEZE] if standing.holds_device else []


log = structlog.get_logger()

T = TypeVar("T")

CLOSE_SECONDS = 12.0
"""How long an orderly end may take; a supervisor kills after about 15 s."""


class NewerLease(Exception):
    """What we waited for is no longer what the lease says."""


class RolloutWorker:
    """The service. ``build`` and ``pace`` are what tests replace."""

    def __init__(
        self, context: Context, settings: WorkerSettings, *, build: BuildEngine = build_engine, pace: Pace | None = None
    ) -> None:
        self._context, self._settings, self._build = context, settings, build
        self._pace = pace or Pace()
        self._lock = DeviceLock(settings.work_dir, settings.node)
        self._tenure: Tenure | None = None
        self._newest: Lease | None = None
        self._news = asyncio.Event()
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_handed_back = 0

    async def run(self) -> None:
        """Serve until asked to stop. Raises EngineError when the engine died."""
        watchman = Watchman(self._context, self._settings, lambda: self._tenure, self._on_engine_death)
        watch = LeaseWatch(self._context.bus, self._settings.node, self._on_lease)
        try:
            await self._context.until_stopped(
                watch.run(),
                self._follow_leases(),
                watchman.observe(),
                watchman.drop_unwanted(),
                watchman.forget_ended(),
                self._dead(),
            )
        finally:
            await self._close()

    async def _on_lease(self, lease: Lease) -> None:
        self._newest = lease
        self._news.set()

    async def _follow_leases(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            assert self._newest is not None
            lease = self._newest
            log.info("lease.seen", run=lease.run, role=lease.role, epoch=lease.epoch, tags=lease.tags, reason=lease.reason)
            try:
                for move in moves(self._standing(), lease):
                    await self._make(move, lease)
            except NewerLease:
                continue
            except BadInput as wrong:
                await self._give_up(lease, str(wrong))

    def _standing(self) -> Standing:
        tenure = self._tenure
        return Standing(
            run=None if tenure is None else tenure.run,
            holds_device=self._lock.held,
            holds_generations=tenure is not None and tenure.num_held > 0,
        )

    async def _make(self, move: Move, lease: Lease) -> None:
        if move is Move.JOIN:
            await self._join(lease)
            return
        tenure = self._tenure
        assert tenure is not None, "every plan that needs a run joins one first"
        if tenure.run == lease.run:
            tenure.heed(lease)
        match move:
            case Move.STOP:
                tenure.stop_pulling()
            case Move.FREEZE:
                await tenure.freeze()
                self._say_state("frozen")
            case Move.HAND_BACK:
                self._num_handed_back = await tenure.hand_back()
                self._say_state("handed back")
            case Move.RELEASE:
                await self._release(tenure, lease)
            case Move.LEAVE:
                await tenure.leave()
                self._tenure = None
                self._context.presence.update(facts={}, slots=0, engine="", run=None, versions=())  # they were the run's
                self._say_state("idle")
            case Move.TAKE:
                await self._take(tenure, lease)
            case Move.PULL:
                await tenure.pull(lease)

    async def _join(self, lease: Lease) -> None:
        assert lease.run is not None
        self._say_state(f"waits for run {lease.run}")
        config = await self._unless_newer(read_run(self._context.journal, lease.run))
        self._tenure = Tenure(
            self._context,
            self._settings,
            lease.run,
            config,
            build=self._build,
            on_state=self._say_state,
            on_engine_death=self._on_engine_death,
            pace=self._pace,
        )
        self._context.presence.update(slots=config.fleet.slots, engine=config.model.engine)

    async def _take(self, tenure: Tenure, lease: Lease) -> None:
        await self._unless_newer(tenure.prepare())
        if not self._lock.held:
            self._say_state("waits for the device")
            await self._unless_newer(self._lock.take())
        self._say_state("loads weights")
        await tenure.start()
        self._say_state("sampling")
        await self._context.journal.publish(
            RoleTaken(run=tenure.run, node=self._settings.node, epoch=lease.epoch, service=Service.ROLLOUT_WORKER)
        )

    async def _give_up(self, lease: Lease, reason: str) -> None:
        """We can never serve this run: ask for its orderly end, and wait for the lease that takes us out of it."""
        self._lock.release()
        log.error("run.cannot_be_served", run=lease.run, reason=reason)
        self._say_state(f"failed: {reason}"[:300])
        if lease.run is not None:
            await stop_run(self._context.journal, Service.ROLLOUT_WORKER, lease.run, reason)

    async def _release(self, tenure: Tenure, lease: Lease) -> None:
        self._lock.release()
        released = RoleReleased(
            run=tenure.run,
            node=self._settings.node,
            epoch=lease.epoch,
            service=Service.ROLLOUT_WORKER,
            num_frozen=tenure.num_held if tenure.is_frozen else 0,
            num_handed_back=self._num_handed_back,
        )
        self._num_handed_back = 0
        await self._context.journal.publish(released)

    async def _unless_newer(self, wait: Coroutine[Any, Any, T]) -> T:
        """Wait, but give up when a newer lease comes: raises NewerLease."""
        work, news = asyncio.create_task(wait), asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait((work, news), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise NewerLease
        finally:
            work.cancel()
            news.cancel()
            await asyncio.gather(work, news, return_exceptions=True)

    def _on_engine_death(self, death: EngineError) -> None:
        if self._death.done():
            return
        tenure = self._tenure
        sampler = None if tenure is None else tenure.sampler
        if tenure is not None:
            tenure.stop_pulling()
        log.error(
            "engine.died",
            node=self._settings.node,
            run=None if tenure is None else tenure.run,
            reason=str(death),
            num_generations=0 if sampler is None else sampler.num_held,
            silent_seconds=0.0 if sampler is None else sampler.activity.silent_seconds(),
            now="generations are handed back and the process ends",
        )
        self._death.set_exception(death)

    async def _dead(self) -> None:
        await asyncio.shield(self._death)

    async def _close(self) -> None:
        """Hand back what is held and let go of everything, within ``CLOSE_SECONDS``."""
        if (tenure := self._tenure) is not None:
            tenure.stop_pulling()
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    with suppress(EngineError):
                        num_handed_back = await tenure.hand_back()
                        log.info("generations.handed_back", run=tenure.run, num_handed_back=num_handed_back)
                    await tenure.leave()
            except TimeoutError:
                log.error("close.cut_short", run=tenure.run, after_seconds=CLOSE_SECONDS, redelivered="after ack_wait")
        self._lock.release()

    def _say_state(self, state: str) -> None:
        self._context.presence.update(state=state)
        log.info("worker.state", state=state)
