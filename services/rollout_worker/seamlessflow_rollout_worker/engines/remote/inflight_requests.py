"""The requests that run at one server, from sending to the end of their streams.

Always true: after ``end_all`` no stream is open, so nothing that was sampled before can arrive later. A stream's end is the
only thing by which HTTP tells that everything has been said: that is why a pause ends requests, and does not freeze them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from .http_client import Http, ServerFault, ServerRefusal
from .options import RemoteOptions
from .server_apis import EARLY, Answer, Ask, Dialect, Ending, Piece

DRAIN_SECONDS = 1.0
"""How long a connection is read on behind the last token, so that it can be used again."""

OnPiece = Callable[[Piece], None]
Abort = Callable[[list[str]], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Attempt:
    """A request on its way."""

    ask: Ask
    task: asyncio.Task[Ending]
    """Ends as the stream does: with its ending, ServerFault or ServerRefusal; cancelled where it was cut off."""
    has_begun: bool = False
    """Something came."""


class Requests:
    """See above. on_over: called when one has ended, with whether it went well."""

    def __init__(
        self, http: Http, dialect: Dialect, options: RemoteOptions, *, vocab_size: int, on_over: Callable[[bool], None]
    ) -> None:
        self._http, self._dialect, self._options, self._vocab_size = http, dialect, options, vocab_size
        self._on_over = on_over
        self._running: set[Attempt] = set()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, ask: Ask, on_piece: OnPiece) -> Attempt:
        """Send a request; ``on_piece`` gets what it says."""

        def take(piece: Piece) -> None:
            attempt.has_begun = True
            on_piece(piece)

        attempt = Attempt(ask, asyncio.create_task(self.stream(ask, take)))
        self._running.add(attempt)
        attempt.task.add_done_callback(lambda _: self._over(attempt))
        return attempt

    async def end(self, attempt: Attempt, abort: Abort | None) -> None:
        """End one request now; returns when nothing more will come of it. abort: tells the server, where it can be told."""
        if attempt.has_begun and abort is not None:
            with suppress(ServerFault, ServerRefusal, TimeoutError):  # then its connection is closed, which does it as well
                async with asyncio.timeout(self._options.cut_seconds):
                    await abort(self._dialect.names_there(attempt.ask.request_id))
                    await asyncio.wait({attempt.task})
        attempt.task.cancel()
        await asyncio.wait({attempt.task})

    async def end_all(self, order: Awaitable[None] | None) -> None:
        """End every request: by an order that makes the server end them, and the rest by closing their connections.

        Raises what the order raises, ServerFault or ServerRefusal; all requests have ended then, too.
        """
        try:
            if order is not None:
                await order
                await self._settle(self._running)
        finally:
            running = [attempt.task for attempt in self._running]
            self.cut_off()
            if running:
                await asyncio.wait(running)

    async def abort_all(self, abort: Abort) -> None:
        """Tell the server to end each one that has begun."""
        begun = [attempt.ask.request_id for attempt in self._running if attempt.has_begun]
        if begun:  # without names, some servers end everybody's
            await abort([name for each in begun for name in self._dialect.names_there(each)])

    def cut_off(self) -> None:
        """Close all connections: servers end requests that nobody reads."""
        for attempt in self._running:
            attempt.task.cancel()

    async def stream(self, ask: Ask, on_piece: OnPiece) -> Ending:
        """One request from beginning to end. Raises ServerFault, where no token comes in time as well, or ServerRefusal.

        A stream that just ends was CUT, also where we aborted it: vLLM's completions say nothing at all of a request that had
        no token yet.
        """
        answer, ending = Answer(ask, self._dialect.reader(), vocab_size=self._vocab_size), None
        clock, silence_seconds = asyncio.get_running_loop().time, self._options.silence_seconds
        events = self._http.events(
            self._dialect.path,
            self._dialect.body(ask),
            silence_seconds=silence_seconds,
            headers={"X-Request-Id": ask.request_id},  # vLLM names a request so, whatever else it is told
        )
        try:
            # Of tokens: a proxy that keeps the connection alive says something all the time.
            async with asyncio.timeout(silence_seconds) as patience, aclosing(events):
                async for event in events:
                    if ending is None:
                        piece = answer.take(event)
                        on_piece(piece)
                        if (ending := piece.ending) is not None:
                            patience.reschedule(clock() + DRAIN_SECONDS)
                        elif piece.token_ids:
                            patience.reschedule(clock() + silence_seconds)
        except TimeoutError as wrong:
            if ending is None:
                raise ServerFault(f"no token came for {silence_seconds:g} s") from wrong
        except ServerFault:
            if ending is None:
                raise
        return Ending.CUT if ending is None else ending

    def _over(self, attempt: Attempt) -> None:
        self._running.discard(attempt)
        task = attempt.task
        self._on_over(not task.cancelled() and task.exception() is None and task.result() not in EARLY)

    async def _settle(self, attempts: set[Attempt]) -> None:
        """Wait for streams that have begun; one that has not has nothing to lose."""
        begun = [attempt.task for attempt in attempts if attempt.has_begun]
        if begun:
            await asyncio.wait(begun, timeout=self._options.cut_seconds)
