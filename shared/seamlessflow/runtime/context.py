"""A service's surroundings, opened once in ``__main__`` and closed in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from ..blobs import Store
from ..bus.base import Bus
from ..bus.jetstream import connect
from ..contracts import NodeStatus, Service
from ..contracts.routes import inbox_prefix
from ..settings import Settings
from ..telemetry import configure_logging
from .inbox import Inbox
from .presence import Presence
from .speaker import Speaker

log = structlog.get_logger()


@dataclass
class Context:
    """All a service may use: it has no other way to the outside but its own adapters."""

    service: Service
    settings: Settings
    bus: Bus
    store: Store
    speaker: Speaker
    inbox: Inbox
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
    store = Store(settings.store_url)
    speaker = Speaker(bus, store)
    status = NodeStatus(
        node=settings.node,
        service=service.value,
        instance=settings.instance,
        capabilities=capabilities,
        slots=slots,
        pid=os.getpid(),
    )
    inbox = Inbox(bus, speaker, store, service)
    return Context(service, settings, bus, store, speaker, inbox, Presence(bus, status), asyncio.Event())


@asynccontextmanager
async def open_context(
    service: Service, settings: Settings, *, capabilities: tuple[str, ...], slots: int = 0
) -> AsyncIterator[Context]:
    """Connect (waiting for the server, saying so), announce presence, watch signals; close in order at the end."""
    configure_logging(settings, service)
    bus = await connect(
        settings.nats_url,
        name=f"{service.value}/{settings.instance}",
        inbox_prefix=inbox_prefix(service),
        nkey_seed=settings.nkey_seed,
    )
    context = make_context(service, settings, bus, capabilities=capabilities, slots=slots)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stopping.set)
    presence = asyncio.create_task(context.presence.run())
    log.info("service.started", node=settings.node, nats=settings.nats_url, store=settings.store_url)
    try:
        yield context
    finally:
        presence.cancel()
        with suppress(asyncio.CancelledError):
            await presence
        await bus.close()
        log.info("service.stopped")
