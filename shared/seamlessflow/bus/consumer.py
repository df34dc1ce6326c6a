"""A pull request that is always open, on one durable consumer, for as long as the subscription lives.

``open`` counts messages asked for and neither delivered nor given back; ``running`` counts handlers. Always true while
nothing goes wrong: open + running <= credit. Who changes what:

    a delivery            open - 1, running + 1      a handler that ends         running - 1, ask again
    408, 409              open - what it names       a server that came back     open = 0, ask again
    any status but 408    ask again in a second      silence of 2.2 heartbeats   open = 0, ask again

Asking again waits until at most half of the free credit is open: the server keeps a timer, heartbeats and an expiry for
every request, and one for each message would be most of what it does. So a few requests stand, never one a slot, and
something is open whenever there is credit.

The last two are the watchdog's: a pull that was open when the server restarted is gone without a word, and nats-py does
not open it again. Every request carries a generation in its reply subject, so that late statuses of given-up requests
change nothing; their late deliveries are handed back when there is no credit for them.

Leaving: ask no more, nak what still arrives until nothing is open (at most ``EXPIRES_SECONDS`` when idle), wait for the
handlers, unsubscribe. Unsubscribing with an open pull would strand messages until their ack_wait ran out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
from typing_extensions import override

from .base import Delivery, Handler, Subscription
from .connection import Incoming, Wire

# A delivery of a real consumer and its four answers: ack, nak, term, in progress.
#
# All four are fire and forget: a lost one means another delivery, which every handler tolerates anyway (JetStream
# delivers at least once, and accepts a late acknowledgement of an earlier delivery). Waiting for the server to confirm
# would halve the throughput and would still not be a fence. No caller waits for an acknowledgement, so others
# travel with it (``Wire.send_soon``): it may reach the server a few milliseconds later.


class JetStreamDelivery(Delivery):
    """A delivery from nats-server; its answers are fire and forget."""

    def __init__(self, wire: Wire, incoming: Incoming) -> None:
        self._wire = wire
        self._incoming = incoming
        self.ended = False
        """True once ack, nak or term was sent; nothing is sent after that."""

    @property
    @override
    def subject(self) -> str:
        return self._incoming.subject

    @property
    @override
    def payload(self) -> bytes:
        return self._incoming.payload

    @property
    @override
    def headers(self) -> Mapping[str, str]:
        return self._incoming.headers

    @property
    @override
    def num_delivered(self) -> int:
        return int(self._field(0))

    @property
    @override
    def seq(self) -> int:
        return int(self._field(1))

    @override
    async def ack(self) -> None:
        if not self.ended:
            self.ended = True
            await self._wire.send_soon(self._incoming.reply, b"+ACK")

    @override
    async def nak(self, delay_seconds: float = 0.0) -> None:
        delay = b" " + json.dumps({"delay": int(delay_seconds * 1e9)}).encode() if delay_seconds > 0 else b""
        await self._end(b"-NAK" + delay)

    @override
    async def term(self, reason: str) -> None:
        await self._end(f"+TERM {reason}".encode())

    @override
    async def in_progress(self) -> None:
        if not self.ended:
            await self._reply(b"+WPI")

    async def _end(self, verdict: bytes) -> None:
        if not self.ended:
            self.ended = True
            await self._reply(verdict)

    async def _reply(self, verdict: bytes) -> None:
        with suppress(TimeoutError):  # away for so long that the buffer is full: the message is delivered again
            await self._wire.send(self._incoming.reply, verdict)

    def _field(self, index: int) -> str:
        """The reply is ``$JS.ACK[.domain.account].stream.consumer.delivered.seq`` and more; old and new form differ."""
        tokens = self._incoming.reply.split(".")
        return tokens[(4 if len(tokens) == 9 else 6) + index]


log = structlog.get_logger()

EXPIRES_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 2.2 * HEARTBEAT_SECONDS
RETRY_SECONDS = 1.0
"""How long after a refusal (consumer deleted, no listener) the next try is made."""
FAILED_HANDLER_DELAY_SECONDS = 1.0
PRIORITY_GROUP = "g"
_LOOK_SECONDS = 0.25


class StandingPull(Subscription):
    """See the module. ``priority`` None for a consumer without a priority group; 0 is served before 1.

    ``on_left``: told when nothing is held any more.
    """

    def __init__(
        self,
        wire: Wire,
        stream: str,
        consumer: str,
        handler: Handler,
        *,
        credit: int,
        priority: int | None,
        on_left: Callable[[StandingPull], None] = lambda _: None,
    ) -> None:
        self._wire, self._on_left = wire, on_left
        self._where = {"stream": stream, "consumer": consumer}
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._group = {} if priority is None else {"group": PRIORITY_GROUP, "priority": priority}
        self._handler = handler
        self._credit = credit
        self._inbox = wire.inbox()
        self._generation = 0
        self._reconnects = wire.reconnects
        self._open = 0
        self._running: set[asyncio.Task[None]] = set()
        self._heard_at = self._silent_until = self._stale_until = 0.0
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._leaving: asyncio.Task[None] | None = None
        self._last_trouble = ""

    async def start(self) -> None:
        """Subscribe to the inbox and begin to pull."""
        self._now = asyncio.get_running_loop().time
        self._stop_listening = await self._wire.listen(f"{self._inbox}.*", self._on_message)
        self._loops = [asyncio.create_task(self._ask_when_woken()), asyncio.create_task(self._watch())]
        self._wake.set()

    @override
    def set_credit(self, credit: int) -> None:
        if credit != self._credit:  # a pull among many is told its share at every delivery of any of them
            self._credit = credit
            self._wake.set()

    @override
    async def leave(self) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())
        await asyncio.shield(self._leaving)

    def abandon(self) -> None:
        """Stop everything at once, as a killed process would."""
        for task in (*self._loops, *self._running):
            task.cancel()

    async def _ask_when_woken(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            missing = self._credit - self._open - len(self._running)
            is_due = missing > 0 and missing >= self._open
            if is_due and self._leaving is None and self._wire.connected and self._now() >= self._silent_until:
                await self._ask(missing)

    async def _ask(self, batch: int) -> None:
        if self._open == 0:
            self._heard_at = self._now()
        self._open += batch
        request = {
            "batch": batch,
            "expires": int(EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
            **self._group,
        }
        reply = f"{self._inbox}.{self._generation}-{batch}"
        await self._wire.send(self._subject, json.dumps(request).encode(), reply=reply)

    async def _on_message(self, incoming: Incoming) -> None:
        self._heard_at = self._now()
        if incoming.status is not None:
            self._on_status(incoming)
            return
        self._give_back(1)
        self._last_trouble = ""
        delivery = JetStreamDelivery(self._wire, incoming)
        if self._leaving is not None or len(self._running) >= self._credit:
            await delivery.nak()
            return
        task = asyncio.create_task(self._handle(delivery))
        self._running.add(task)
        task.add_done_callback(self._on_handled)
        self._wake.set()

    def _on_status(self, incoming: Incoming) -> None:
        generation, _, batch = incoming.subject.rpartition(".")[2].partition("-")
        if incoming.status == 100 or int(generation) != self._generation:
            return
        if incoming.status != 408:
            self._silent_until = self._now() + RETRY_SECONDS
            self._log_once(f"{incoming.status} {incoming.description.strip()}")
        self._give_back(int(incoming.headers.get("Nats-Pending-Messages", batch)))
        self._wake.set()

    def _give_back(self, count: int) -> None:
        self._open = max(0, self._open - count)
        if self._open == 0:
            self._drained.set()

    async def _handle(self, delivery: JetStreamDelivery) -> None:
        try:
            await self._handler(delivery)
        except Exception:
            log.exception("bus.handler_failed", subject=delivery.subject, num_delivered=delivery.num_delivered, **self._where)
            await delivery.nak(FAILED_HANDLER_DELAY_SECONDS)

    def _on_handled(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake.set()

    async def _watch(self) -> None:
        looked_at = self._now()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._now() - looked_at > HEARTBEAT_SECONDS:
                self._heard_at = self._now()  # it was this process that stood still, not the server
            looked_at = self._now()
            if self._wire.connected:
                self._reopen_if_gone()
            if self._open + len(self._running) < self._credit:
                self._wake.set()

    def _reopen_if_gone(self) -> None:
        restarted = self._wire.reconnects != self._reconnects
        if not restarted and (self._open == 0 or self._now() - self._heard_at < SILENCE_SECONDS):
            return
        log.info("bus.pull_reopened", reason="reconnected" if restarted else "silence", **self._where)
        self._stale_until = self._now() + EXPIRES_SECONDS
        self._reconnects = self._wire.reconnects
        self._generation += 1
        self._silent_until = 0.0
        self._give_back(self._open)

    def _log_once(self, trouble: str) -> None:
        if trouble != self._last_trouble:
            self._last_trouble = trouble
            log.warning("bus.pull_refused", trouble=trouble, **self._where)

    async def _leave(self) -> None:
        self._drained.clear()
        if self._open:
            with suppress(TimeoutError):  # the server is away, and with it the pull
                async with asyncio.timeout(EXPIRES_SECONDS + 1.0):
                    await self._drained.wait()
        await asyncio.sleep(max(0.0, self._stale_until - self._now()))
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._stop_listening()
        self.abandon()
        self._handler = _ignore  # it goes with all that it refers to, whoever still has the subscription
        self._on_left(self)


async def _ignore(delivery: Delivery) -> None:
    await delivery.nak()
