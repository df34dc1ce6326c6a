"""What our engines have in front of the sampling: their limits, their open requests, the words of their refusals.

Nothing here samples; each engine keeps the promises of ``Engine`` in its own way behind it.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable

from seamlessflow.errors import BadInput

from .base import Chunk, EngineError, Finish, SamplingParams, check_request

# The loop's side of an engine: what was sampled for each request, until its iterator takes it.
#
# Lives in one asyncio loop and has no lock. Always true: chunks come out in the order they went in, joined as long as
# one weights version drew them; the one with ``finish`` is last; a failure is raised after everything sampled before it.


class Box:
    """The chunks of one request on their way to its iterator."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._failure: EngineError | BadInput | None = None
        self._arrived = asyncio.Event()

    def put(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._arrived.set()

    def fail(self, failure: EngineError | BadInput) -> None:
        self._failure = failure
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            await self._arrived.wait()
            while self._chunks:
                chunk = self._take()
                yield chunk
                if chunk.finish is not None:
                    return
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()

    def _take(self) -> Chunk:
        """All that can be one chunk: one version, nothing behind an end."""
        first = last = self._chunks.popleft()
        token_ids, logprobs = list(first.token_ids), list(first.logprobs)
        while last.finish is None and self._chunks and self._chunks[0].weights_version == first.weights_version:
            last = self._chunks.popleft()
            token_ids += last.token_ids
            logprobs += last.logprobs
        return Chunk(tuple(token_ids), tuple(logprobs), first.weights_version, last.finish)


class Outbox:
    """The boxes of all requests that have not ended for their callers.

    A request is addressed by a ticket of its own: a late chunk of one that was closed can never reach a later one
    that happens to bear the same id.
    """

    def __init__(self) -> None:
        self._boxes: dict[int, Box] = {}
        self._tickets: dict[str, int] = {}
        self._next_ticket = itertools.count()

    def ticket_of(self, request_id: str) -> int | None:
        """The ticket of an open request; None when there is none of that id."""
        return self._tickets.get(request_id)

    def open(self, request_id: str) -> tuple[int, Box]:
        ticket, box = next(self._next_ticket), Box()
        self._tickets[request_id], self._boxes[ticket] = ticket, box
        return ticket, box

    def close(self, request_id: str) -> None:
        """Forget a request; what still arrives for it is dropped."""
        del self._boxes[self._tickets.pop(request_id)]

    def deliver(self, chunks: Iterable[tuple[int, Chunk]]) -> None:
        """Put each chunk into the box of its request, where there is one."""
        for ticket, chunk in chunks:
            if ticket in self._boxes:
                self._boxes[ticket].put(chunk)

    def interrupt_all(self, weights_version: int) -> None:
        """End every request with INTERRUPTED."""
        for box in self._boxes.values():
            box.put(Chunk((), (), weights_version, Finish.INTERRUPTED))

    def fail_all(self, failure: EngineError) -> None:
        """Raise ``failure`` in every iterator, after what it has not taken yet."""
        for box in self._boxes.values():
            box.fail(failure)


NOT_RUNNING = "The engine is not running; start it first."
ALREADY_RUNNING = "The engine is already running; stop it first."
NOT_PAUSED = "Weights can be loaded only while paused; call pause() first. Nothing was copied."


def died_of(reason: object) -> EngineError:
    """The refusal of every call after a death."""
    return EngineError(f"The engine died of {reason!r}. Stop and start it.")


class EngineFront(ABC):
    """The part of an ``Engine`` that is the same for all of ours. max_context_tokens: an engine may cap it at ``start``."""

    def __init__(self, *, num_slots: int, max_context_tokens: int) -> None:
        self._num_slots = num_slots
        self._max_context_tokens = max_context_tokens
        self._weights_version = 0
        self._outbox = Outbox()

    @property
    def weights_version(self) -> int:
        return self._weights_version

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def max_context_tokens(self) -> int:
        return self._max_context_tokens

    @abstractmethod
    async def pause(self) -> None: ...

    @abstractmethod
    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        """Pause; no memory is freed."""
        await self.pause()

    async def wake(self) -> None:
        await self.resume()

    def _admit(self, request_id: str, prompt_ids: list[int], params: SamplingParams, *, vocab_size: int) -> tuple[int, Box]:
        """Open a request: its ticket and the box of its chunks. Raises BadInput for what ``Engine.generate`` refuses."""
        check_request(prompt_ids, params, max_context_tokens=self._max_context_tokens, vocab_size=vocab_size)
        if self._outbox.ticket_of(request_id) is not None:
            raise BadInput(f"Request {request_id} is already running; ids must be unique among running requests.")
        return self._outbox.open(request_id)
