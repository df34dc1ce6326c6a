"""The servers of a remote engine: which one takes a request, what all of them are told, and how one comes back.

    look at each, once a health_seconds:   up ──unhealthy, other weights──▶ away ──healthy──▶ has our weights? ──▶ up
                                                                                              └─no─▶ try out, load ─┘
A server that fails an order is away; the others go on. One that comes back gets the newest weights before any request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from seamlessflow.errors import BadInput, Unavailable
from seamlessflow_rollout_worker.engines.base import EngineError

from .http_client import ServerFault, ServerRefusal
from .options import RemoteOptions
from .probe import is_exact, swapped_copy
from .server import RemoteServer
from .server_control import Needs

# Which of several servers takes a request: the one that has most of its beginning, unless that has much more to do. Pure.
#
# A beginning is known by blocks: of each block of BLOCK tokens a digest of everything up to its end, and the server that had it
# last. What siblings of a group and the next turn of an episode share is more than half of their prompt; a system text that
# all agents share is less, and must not draw all of them to one server.


BLOCK = 32
"""Tokens."""
MOST_BLOCKS = 1 << 16
"""Remembered, over all servers: two million tokens; about 10 MB."""
SHARE = 0.5
"""A server that had less than this share of a prompt is no better than another."""
SLACK = 4
"""Requests that a server may have more than the least loaded one, for the sake of what it remembers."""


class Affinity:
    """What was sent where."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._server_of: OrderedDict[int, int] = OrderedDict()

    def note(self, ids: Sequence[int], server: int) -> None:
        """``server`` has these ids now."""
        for key in _keys(ids):
            self._server_of[key] = server
            self._server_of.move_to_end(key)
        while len(self._server_of) > self._most_blocks:
            self._server_of.popitem(last=False)

    def forget(self) -> None:
        """The servers' caches are of other weights now."""
        self._server_of.clear()

    def server_of(self, ids: Sequence[int]) -> int | None:
        """Who had the longest beginning of these ids, if that is worth anything."""
        best, num_blocks = None, 0
        for key in _keys(ids):
            server = self._server_of.get(key)
            if server is None:
                break
            best, num_blocks = server, num_blocks + 1
        return best if num_blocks * BLOCK >= SHARE * len(ids) else None


def chosen(loads: Mapping[int, int], favourite: int | None) -> int | None:
    """The favourite, if it is there and not too busy, else the least loaded (the first of several). None: there are none.

    loads: requests at each server that can take one.
    """
    if not loads:
        return None
    least = min(loads.values())
    if favourite is not None and favourite in loads and loads[favourite] <= least + SLACK:
        return favourite
    return min(loads, key=lambda server: (loads[server], server))


def _keys(ids: Sequence[int]) -> Iterator[int]:
    """A digest of each beginning that ends with a whole block. Python's own hash of numbers: the same within a process."""
    key = 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        key = hash((key, tuple(ids[end - BLOCK : end])))
        yield key


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Version:
    """Weights that servers should have."""

    folder: Path
    """Here."""
    label: str
    """Their name at the servers; no other weights of any worker ever had it."""


class Fleet:
    """See above. version: that of the start. changed: what servers call when they do."""

    def __init__(
        self,
        servers: Sequence[RemoteServer],
        options: RemoteOptions,
        needs: Needs,
        version: Version,
        changed: asyncio.Event,
        *,
        vocab_size: int,
        max_context_tokens: int,
    ) -> None:
        self.changed = changed
        """Set whenever a server came, went, or ended a request."""
        self.version = version
        self.max_context_tokens = max_context_tokens
        """After the start no longer than the shortest of those that are there; one that comes later must have as much."""
        self._servers, self._options, self._needs = servers, options, needs
        self._vocab_size = vocab_size
        self._swapping = asyncio.Lock()
        self._affinity = Affinity()
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when at least one server is up, after all that answered were tried out.

        Raises BadInput where one of them cannot serve the run; EngineError where none came within start_seconds.
        """
        deadline = asyncio.get_running_loop().time() + self._options.start_seconds
        while not await self._prepare_all():
            if asyncio.get_running_loop().time() >= deadline:
                raise EngineError(f"After {self._options.start_seconds:g} s no engine server is there: {self.why_away()}.")
            await asyncio.sleep(self._options.health_seconds)
        told = [server.max_context_tokens for server in self.ready if server.max_context_tokens is not None]
        self.max_context_tokens = min([self.max_context_tokens, *told])
        log.info("engine.servers", servers=[_described(server) for server in self._servers])
        self._watches = [asyncio.create_task(self._watch(server)) for server in self._servers]

    async def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers))

    def records(self, temperature: float, top_p: float) -> bool:
        """Whether the logprobs of all servers are ours at these settings."""
        return all(is_exact(server.meaning, temperature, top_p) for server in self._servers if server.control is not None)

    @property
    def ready(self) -> list[RemoteServer]:
        """Those that are up with the weights that count."""
        return [server for server in self._servers if server.is_up]

    def why_away(self) -> str:
        return "; ".join(f"{server.name}: {server.why_away}" for server in self._servers if not server.is_up)

    def choose(self, ids: Sequence[int]) -> RemoteServer | None:
        """The server for a request; None while none is up."""
        loads = {place: server.num_running for place, server in enumerate(self._servers) if server.is_up}
        place = chosen(loads, self._affinity.server_of(ids))
        if place is None:
            return None
        self._affinity.note(ids, place)
        return self._servers[place]

    def remember(self, ids: Sequence[int], server: RemoteServer) -> None:
        """What a request has grown to: the next turn begins with it."""
        self._affinity.note(ids, self._servers.index(server))

    async def pause(self) -> None:
        """All streams have ended when it returns. A server that does not obey is away."""
        await self._all(lambda server: server.pause() if server.is_up else server.cut_off(), self._servers)

    async def resume(self) -> None:
        await self._all(lambda server: server.resume(), self.ready)

    async def load(self, version: Version) -> None:
        """Load weights into every server that is up; one that fails is away, and gets them before it comes back.

        Raises Unavailable where none is up, BadInput where all failed: the version that counts stays the old one.
        """
        servers = self.ready
        if not servers:
            raise Unavailable(f"No engine server is there to load weights: {self.why_away()}.")
        folder = self._options.path_there(version.folder)
        await self._all(lambda server: server.load(folder, version.label), servers)
        if not any(server.is_up and server.label == version.label for server in servers):
            raise BadInput(f"No engine server could load {version.label} from {folder}: {self.why_away()}.")
        self.version = version
        self._affinity.forget()
        for server in self.ready:
            if server.label != version.label:  # it came back with the old ones while the others loaded
                server.fail(f"has {server.label}, not {version.label}")

    async def _all(self, order: Callable[[RemoteServer], Awaitable[None]], servers: Sequence[RemoteServer]) -> None:
        outcomes = await asyncio.gather(*(order(server) for server in servers), return_exceptions=True)
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, ServerFault | ServerRefusal):
                server.fail(outcome)
            elif outcome is not None:
                raise outcome

    async def _prepare_all(self) -> bool:
        """Whether at least one is up. Raises BadInput."""
        outcomes = await asyncio.gather(*(self._bring_back(server) for server in self._servers), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return bool(self.ready)

    async def _watch(self, server: RemoteServer) -> None:
        while True:
            await asyncio.sleep(self._options.health_seconds)
            try:
                if server.is_up:
                    await server.look()
                elif not server.is_resting:
                    await self._bring_back(server)
            except Exception as wrong:
                # OSError: the version was removed meanwhile. Anything else is a mistake of ours, which must not end the watch:
                # nobody would notice, and the server would never come back.
                if not isinstance(wrong, ServerFault | ServerRefusal | BadInput | OSError):
                    log.error("engine.watch_failed", server=server.name, exc_info=wrong)
                server.fail(wrong)
                await server.cut_off()  # what still runs there goes on elsewhere

    async def _bring_back(self, server: RemoteServer) -> None:
        """Make it ready and say that it is up. Raises BadInput where it cannot serve the run."""
        try:
            await server.look()
            if server.label is None or server.label != self.version.label:
                await server.cut_off()  # what was sent there was sent to other weights
                abilities = await server.prepare()
                self._needs.check(server.name, abilities, server.meaning)
                self._check_context(server)
                await self._try_loading(server)
                await self._update(server)
            await server.resume()
            if self._needs.fixed_model or server.label == self.version.label:
                server.up()
        except (ServerFault, ServerRefusal) as wrong:
            server.fail(wrong)

    def _check_context(self, server: RemoteServer) -> None:
        told = server.max_context_tokens
        if self._watches and told is not None and told < self.max_context_tokens:
            raise BadInput(f"{server.name}: its context is {told} tokens, the others have {self.max_context_tokens}")

    async def _try_loading(self, server: RemoteServer) -> None:
        """Raises BadInput for a server that says that it loaded weights and does not use all of them."""
        if self._needs.fixed_model or not self._options.tries_loading:
            return
        folder = self.version.folder
        async with self._swapping:
            swapped = await asyncio.to_thread(swapped_copy, folder, self._vocab_size)
        if swapped is None:
            log.warning("engine.loading_not_tried", server=server.name, reason="no matrix of tokens is known by its name")
            return
        await server.try_loading(self._options.path_there(folder), self._options.path_there(swapped))

    async def _update(self, server: RemoteServer) -> None:
        """Load until what it has is what counts, which may change meanwhile."""
        while not self._needs.fixed_model and server.label != self.version.label:
            version = self.version
            await server.load(self._options.path_there(version.folder), version.label)


def _described(server: RemoteServer) -> dict[str, object]:
    """What a server can do, and how that is made up for where it cannot."""
    if server.control is None:
        return {"server": server.name, "away": server.why_away}
    abilities = server.control.abilities
    return {
        "server": server.name,
        "pause": "its own" if abilities.pauses else "requests are ended",
        "abort": "its own" if abilities.aborts else "connections are closed",
        "weights": "loaded from a folder" if abilities.updates else "fixed",
        "logprobs": str(server.meaning or "not told by this model"),
        "max_context_tokens": server.max_context_tokens,
    }
