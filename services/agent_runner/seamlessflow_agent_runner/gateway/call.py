"""A call as the gateway holds it: who waits for its answer, and whether it reached anybody. Pure, its task aside.

One call has several clients when a retry joined it while the connection before looked alive. It is lost when all are gone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from seamlessflow.contracts import CallAnswered

from .progress import Progress


@dataclass(eq=False, slots=True)
class Call:
    """Lives as long as its session, so it keeps little once its answer is delivered."""

    id: str
    body_digest: bytes
    answer: asyncio.Task[CallAnswered] | None = None
    """Goes on when clients go away. None: delivered, and never asked for again (what was said is kept in ``memory``)."""
    progress: Progress | None = field(default_factory=Progress)
    clients: list[asyncio.Transport] = field(default_factory=list)
    """Those that wait for it now. Not their requests, which would keep the whole bodies."""
    num_joins: int = 0
    """How many marked retries joined it while its clients looked alive."""
    was_said: bool = False
    """It stands in the journal."""
    was_delivered: bool = False
    """The whole answer was handed to a connection that was still open."""
    is_abandoned: bool = False
    """Its clients did not come back in time: nothing more is sampled for it."""
    leaving: asyncio.Task[None] | None = None
    """Waits for a client to come back."""

    @property
    def has_lost_client(self) -> bool:
        """Nobody waits for it."""
        return all(client.is_closing() for client in self.clients)

    @property
    def is_answered(self) -> bool:
        return self.answer is None or self.answer.done()

    def join(self, client: asyncio.Transport | None) -> None:
        """One more waits for it. None: gone already."""
        if client is not None:
            self.clients.append(client)

    def leave(self, client: asyncio.Transport | None) -> None:
        """It was answered, or went away."""
        if client in self.clients:
            self.clients.remove(client)

    def deliver(self) -> None:
        """Its answer reached a client; others that wait hold what they need."""
        self.was_delivered = True
        self.answer = self.progress = None

    def give_up(self) -> None:
        """Its session is over. Clients that wait are told so, but not those that do not even take what they were sent."""
        if self.answer is not None:
            self.answer.cancel()
        for client in self.clients:
            if client.get_write_buffer_size():
                client.abort()
