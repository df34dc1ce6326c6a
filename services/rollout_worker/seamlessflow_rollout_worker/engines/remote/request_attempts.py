"""One request of a remote engine, from its slot to its end, over as many attempts at servers as it takes.

    slot ─▶ awake? ─▶ a server ─▶ attempt ─▶ ended ─▶ done
              ▲                      │ cut by a pause, server failed
              └──────────────────────┘ go on behind the last token that came

Always true: every attempt is stamped with the version that counted when it was sent, and no attempt lives through a change
of it (``Fleet.pause`` ends them all): versions are exact.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish, SamplingParams

from .http_client import ServerFault, ServerRefusal
from .inflight_requests import Attempt
from .server import RemoteServer
from .server_apis import EARLY, Ending, Piece
from .server_pool import Fleet

LOOK_SECONDS = 0.25
"""How often one that waits for a server looks whether it should still."""
FEWEST_FAILURES = 3
"""An engine is not given up before a request failed this often in a row, however long each took."""
_UNUSABLE = (400, 413, 422)
"""What servers say to a request that none of them will ever serve."""


@dataclass(slots=True)
class Gate:
    """What all requests of an engine wait for, and what they are stamped with."""

    awake: asyncio.Event
    weights_version: int


class Job:
    """See above. deliver: gets chunks as they come; the one with ``finish`` is last."""

    def __init__(
        self,
        fleet: Fleet,
        gate: Gate,
        deliver: Callable[[Chunk], None],
        *,
        request_id: str,
        prompt_ids: list[int],
        params: SamplingParams,
        patience_seconds: float,
    ) -> None:
        self._fleet, self._gate, self._deliver = fleet, gate, deliver
        self._request_id, self._ids, self._params = request_id, list(prompt_ids), params
        self._patience_seconds = patience_seconds
        self._num_left = min(params.max_tokens, fleet.max_context_tokens - len(prompt_ids))
        self._numbers = itertools.count()
        self._current: tuple[RemoteServer, Attempt] | None = None
        self._ending = asyncio.Lock()
        self._is_ending = False
        self.is_finished = False
        """Its last chunk has been delivered."""
        self._num_failures = 0
        self._clock = asyncio.get_running_loop().time
        self._stuck_since = self._clock()
        """Since when no token came; what was spent waiting for a slot, or paused, left out."""

    async def run(self) -> None:
        """Raises EngineError where no server can go on with it; BadInput where none ever will."""
        self._stuck_since = self._clock()
        while not (self.is_finished or self._is_ending):
            if not self._gate.awake.is_set():
                paused_at = self._clock()
                await self._gate.awake.wait()
                self._stuck_since += self._clock() - paused_at
                continue  # it may have been closed again before our turn came
            server = self._fleet.choose(self._ids)
            if server is None:
                await self._wait_for_server()
            else:
                await self._attempt(server)

    async def end(self) -> None:
        """End with INTERRUPTED after what was sampled, unless it has ended; all is delivered when this returns."""
        async with self._ending:
            self._is_ending = True
            if self._current is not None:
                server, attempt = self._current
                await server.end(attempt)
            if not self.is_finished:
                self.is_finished = True
                self._deliver(Chunk((), (), self._gate.weights_version, Finish.INTERRUPTED))

    async def _wait_for_server(self) -> None:
        self._give_up_after(self._patience_seconds, f"no engine server is there: {self._fleet.why_away()}")
        self._fleet.changed.clear()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._fleet.changed.wait()
        except TimeoutError:
            pass

    async def _attempt(self, server: RemoteServer) -> None:
        version = self._gate.weights_version

        def take(piece: Piece) -> None:
            self._take(piece, version)

        request_id = f"{self._request_id}.{next(self._numbers)}"
        attempt = server.begin(request_id, list(self._ids), self._params, self._num_left, take)
        self._current = server, attempt
        try:
            await asyncio.wait({attempt.task})
        finally:
            attempt.task.cancel()  # where our caller went away
            self._current = None
        self._fleet.remember(self._ids, server)
        self._judge(server, attempt.task)

    def _judge(self, server: RemoteServer, task: asyncio.Task[Ending]) -> None:
        """Why an attempt ended, where that was no end of the request."""
        if task.cancelled() or self.is_finished:
            return  # cut off by us
        wrong = task.exception()
        if wrong is None:
            if self._gate.awake.is_set() and not self._is_ending and server.is_up:
                self._failed(server, EARLY.get(task.result(), "it ended an answer that has no end"))
        elif isinstance(wrong, ServerRefusal) and wrong.status in _UNUSABLE:
            raise BadInput(f"{server.name} refuses {self._request_id}: {wrong}. Nothing was sampled by it.") from wrong
        elif isinstance(wrong, ServerFault | ServerRefusal):
            self._failed(server, wrong)
        else:
            raise wrong

    def _failed(self, server: RemoteServer, reason: object) -> None:
        server.fail(reason)
        self._num_failures += 1
        if self._num_failures >= FEWEST_FAILURES:
            self._give_up_after(self._patience_seconds, f"{self._request_id} failed {self._num_failures} times: {reason}")

    def _give_up_after(self, seconds: float, reason: str) -> None:
        if self._clock() - self._stuck_since > seconds:
            raise EngineError(
                f"For {seconds:g} s no token could be sampled: {reason}. What was sampled before has been reported."
            )

    def _take(self, piece: Piece, version: int) -> None:
        """Tokens as they come. They tell by themselves when the request has ended, whatever the server says of it later."""
        if self.is_finished or not piece.token_ids:
            return
        self._ids += piece.token_ids
        self._num_left -= len(piece.token_ids)
        self._stuck_since, self._num_failures = self._clock(), 0
        finish = None
        if piece.token_ids[-1] in self._params.stop_token_ids:
            finish = Finish.STOP
        elif self._num_left == 0:
            finish = Finish.LENGTH
        self.is_finished = finish is not None
        self._deliver(Chunk(piece.token_ids, piece.logprobs, version, finish))
