"""A service's surroundings, opened once in ``__main__`` and closed in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.bus.jetstream import connect
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import NodeStatus, Service
from seamlessflow.contracts.subjects import inbox_prefix
from seamlessflow.errors import BusClosed
from seamlessflow.redaction import without_password
from seamlessflow.store.large_payloads import Store
from seamlessflow.store.timeouts import StoreTimeouts
from seamlessflow.telemetry import configure_logging, serve_metrics

from .event_handlers import EventHandlers
from .journal import Journal
from .presence import GOODBYE_SECONDS, Presence, claim

log = structlog.get_logger()

_LOOK_SECONDS = 0.1


@dataclass
class Context:
    """All a service may use: it has no other way to the outside but its own adapters."""

    service: Service
    settings: Settings
    bus: Bus
    store: Store
    journal: Journal
    handlers: EventHandlers
    presence: Presence
    stopping: asyncio.Event
    """Set by SIGTERM or SIGINT: take no new work, hand back or finish, then return."""

    async def until_stopped(self, *work: Awaitable[None]) -> None:
        """Run the given coroutines until a stop is asked for or one of them fails; then cancel them.

        A failure is raised, so that the process exits and its supervisor restarts it.
        """
        tasks = [asyncio.ensure_future(w) for w in work]
        stop = asyncio.create_task(self.stopping.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                task.result()
        finally:
            for task in (*tasks, stop):
                task.cancel()
            await asyncio.gather(*tasks, stop, return_exceptions=True)


def make_context(service: Service, settings: Settings, bus: Bus, *, capabilities: tuple[str, ...], slots: int = 0) -> Context:
    """Surroundings over a given bus; tests pass a MemoryBus."""
    store = Store(settings.store_url, StoreTimeouts(settings.store_call_seconds))
    journal = Journal(bus, store)
    status = NodeStatus(
        node=settings.node,
        service=service.value,
        instance=settings.instance,
        capabilities=capabilities,
        slots=slots,
        pid=os.getpid(),
    )
    handlers = EventHandlers(bus, journal, store, service)
    return Context(service, settings, bus, store, journal, handlers, Presence(bus, status), asyncio.Event())


@asynccontextmanager
async def open_context(
    service: Service, settings: Settings, *, capabilities: tuple[str, ...], slots: int = 0
) -> AsyncIterator[Context]:
    """Connect (waiting for the server), announce presence, watch signals; close in order at the end. Raises
    ConfigError where another process that is there has our node and service.

    A stop that finds the server away does not wait for it: the bus is closed, what waits on it ends with BusClosed, and
    that is no failure. Unpublished events are made up for, as after a kill.
    """
    configure_logging(settings, service)
    bus = await connect(
        settings.nats_url,
        name=f"{service.value}/{settings.instance}",
        inbox_prefix=inbox_prefix(service),
        nkey_seed=settings.nkey_seed,
    )
    context = make_context(service, settings, bus, capabilities=capabilities, slots=slots)
    if service is not Service.SCHEDULER:  # two of them are a leader and a follower
        try:
            await claim(bus, context.presence.status)
        except BaseException:
            await bus.close()
            raise
    end_metrics = serve_metrics(settings, service, lambda: context.bus.connected)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stopping.set)
    presence = asyncio.create_task(context.presence.run())
    leaving = asyncio.create_task(_close_when_alone(context))
    nats = without_password(settings.nats_url)
    log.info("service.started", node=settings.node, nats=nats, store=without_password(settings.store_url))
    try:
        yield context
    except BusClosed:
        if not context.stopping.is_set():
            raise
    finally:
        for task in (presence, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await bus.close()
        end_metrics()
        log.info("service.stopped")


async def _close_when_alone(context: Context) -> None:
    """After a stop was asked for: close the bus once the server has been away for longer than a goodbye may take."""
    await context.stopping.wait()
    alone_seconds = 0.0
    while alone_seconds < GOODBYE_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        alone_seconds = 0.0 if context.bus.connected else alone_seconds + _LOOK_SECONDS
    log.warning("service.leaves_unheard", reason="the nats-server is away; unpublished events will be made up for")
    await context.bus.close()
