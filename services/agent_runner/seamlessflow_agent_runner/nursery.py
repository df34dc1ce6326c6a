"""All zygotes of a runner: one per entrypoint and environment, started when first asked for.

One bare zygote serves commands and entrypoints that want, or need, a new interpreter. Whatever died is started again
when it is next asked for.
"""

from __future__ import annotations

import asyncio

import structlog

from .launch import Kind
from .zygote_link import Zygote

log = structlog.get_logger()


class Nursery:
    """All zygotes of a runner."""

    def __init__(self) -> None:
        self._zygotes: dict[Kind, Zygote] = {}
        self._locks: dict[Kind, asyncio.Lock] = {}

    async def zygote(self, kind: Kind) -> Zygote:
        """A live zygote of a kind, started when there is none. Raises NotStarted."""
        async with self._locks.setdefault(kind, asyncio.Lock()):
            zygote = self._zygotes.get(kind)
            if zygote is None or not zygote.is_alive:
                if zygote is not None:
                    log.warning("zygote.restarted", entrypoint=kind.entrypoint)
                    await zygote.close()
                zygote = self._zygotes[kind] = await Zygote.start(kind)
            return zygote

    async def close(self) -> None:
        """End all zygotes and their agents."""
        zygotes, self._zygotes = list(self._zygotes.values()), {}
        await asyncio.gather(*(zygote.close() for zygote in zygotes))
