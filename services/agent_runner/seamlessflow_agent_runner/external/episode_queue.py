"""The episodes of one external environment: matches deliveries with the clients that wait for an episode.

    delivery ─▶ opening (being read) ─▶ at hand ─▶ claimed by a waiting client ─▶ an episode, acknowledged at its end
                                          └─ not claimed in time ─▶ handed back to the stream

Pull only as many deliveries as there are waiting clients. While a client waits for one certain task, deliveries of other
tasks stay at hand for the next request; only for a short time, since another gateway may want them.

The patrol pulls one delivery now and then without a waiting client: the deliveries of a gateway that was killed come first,
and the ends of their episodes are still unpublished. A delivery without a client goes straight back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from seamlessflow.bus.base import Delivery

from .external_episode import ExternalEpisode

_NUMBERS = count()


@dataclass(eq=False)
class Want:
    """One request for an episode. ``task`` None: of any task."""

    task: str | None = None
    number: int = field(default_factory=_NUMBERS.__next__)


@dataclass(eq=False)
class Offer:
    """One episode at hand. ``seq``: its place in the queue."""

    task: str
    seq: int


class Matching:
    """Matches wants with offers, each at most once. Pure.

    Always true: no waiting want fits an offer at hand. A want for one task has no other choice, so it comes before those for
    any task; otherwise the oldest want comes first. Of the offers at hand the one that was opened first is given, so that the
    members of a group go out one after the other.
    """

    def __init__(self) -> None:
        self.wants: list[Want] = []
        """In the order they asked."""
        self.offers: list[Offer] = []
        """In the order they came."""

    def ask(self, want: Want) -> Offer | None:
        """The offer for a want; None: it waits. A want that asks again has its old place."""
        fitting = [offer for offer in self.offers if want.task in (None, offer.task)]
        if fitting:
            return self._taken(min(fitting, key=lambda offer: offer.seq))
        self.wants.append(want)
        self.wants.sort(key=lambda each: each.number)
        return None

    def offer(self, offer: Offer) -> Want | None:
        """The want that gets the offer; None: it stays at hand."""
        fitting = [want for want in self.wants if want.task in (None, offer.task)]
        if fitting:
            want = min(fitting, key=lambda each: (each.task is None, each.number))
            self.wants.remove(want)
            return want
        self.offers.append(offer)
        return None

    def withdraw(self, one: Want | Offer) -> bool:
        """Remove a want or an offer; whether it was still unmatched."""
        waiting: list[Want] | list[Offer] = self.wants if isinstance(one, Want) else self.offers
        if one not in waiting:
            return False
        waiting.remove(one)  # type: ignore[arg-type]
        return True

    def _taken(self, offer: Offer) -> Offer:
        self.offers.remove(offer)
        return offer


SHELF_SECONDS = 2.0
"""How long an episode stays at hand before it is handed back."""
SHELF_SIZE = 256
"""Most episodes at hand; for one more the first is handed back, so that a search for one task gets through a long queue."""
PATROL_SECONDS = 10.0
"""Time between two pulls without a waiting client; the first is at the start."""
PATROL_PULL_SECONDS = 0.25
"""How long such a pull lasts; a longer one would catch episodes that are opened only then."""


@dataclass(eq=False)
class WaitingClient(Want):
    """A client that waits for an episode. ``is_there``: whether its connection is still open."""

    is_there: Callable[[], bool] = lambda: True
    handed: asyncio.Future[ExternalEpisode | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The started episode. None: the run was left meanwhile."""
    is_claimed: bool = False
    """An episode is being started for it."""
    is_gone: bool = False
    """The client does not wait any more."""


class EpisodeQueue:
    """Deliveries and clients of one environment of one run. ``on_change``: called when more or fewer deliveries are wanted."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._matching = Matching()
        self._at_hand: dict[Offer, asyncio.Future[WaitingClient | None]] = {}
        self._opening: set[Delivery] = set()
        self._is_open = True
        self._is_on_patrol = False
        self._found_lost = asyncio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether a client waits."""
        return bool(self._matching.wants)

    @property
    def num_missing(self) -> int:
        """How many more deliveries are wanted."""
        return max(0, max(len(self._matching.wants), int(self._is_on_patrol)) - len(self._opening))

    @property
    def num_unclaimed(self) -> int:
        """Deliveries held here that no client has claimed."""
        return len(self._opening) + len(self._at_hand)

    def ask(self, client: WaitingClient) -> None:
        """Add a client, or give it an episode at hand. A client whose episode turned out to be over asks again."""
        if client.is_gone or client.handed.done():
            return
        if not self._is_open:
            client.handed.set_result(None)
            return
        offer = self._matching.ask(client)
        client.is_claimed = offer is not None
        if offer is not None:
            self._at_hand[offer].set_result(client)
        self._on_change()

    def withdraw(self, client: WaitingClient) -> None:
        """Remove a client."""
        client.is_gone = True
        self._matching.withdraw(client)
        self._on_change()

    def entered(self, delivery: Delivery) -> None:
        """Count a delivery that is being read."""
        self._opening.add(delivery)
        self._is_on_patrol = False

    def settled(self, delivery: Delivery) -> None:
        """Count a delivery as read. Idempotent."""
        self._opening.discard(delivery)

    async def claimed(self, task: str, delivery: Delivery) -> WaitingClient | None:
        """The client that gets the delivered episode of this task. None: none came in time."""
        offer = Offer(task, delivery.seq)
        self.settled(delivery)
        while isinstance(taker := self._matching.offer(offer), WaitingClient):
            if taker.is_there():
                taker.is_claimed = True
                return taker
        if not self.is_wanted:
            self._matching.withdraw(offer)
            return None
        claim = self._at_hand[offer] = asyncio.get_running_loop().create_future()
        self._make_room()
        self._on_change()
        try:
            # Not a time-out around the future: one that meets the claim would lose it.
            await asyncio.wait({claim}, timeout=SHELF_SECONDS)
            return claim.result() if claim.done() else None
        finally:
            self._matching.withdraw(offer)
            del self._at_hand[offer]

    async def patrol(self) -> None:
        """Pull a delivery every PATROL_SECONDS without a waiting client, until closed or cancelled."""
        while self._is_open:
            self._found_lost.clear()
            self._set_patrol(is_on=True)
            await asyncio.sleep(PATROL_PULL_SECONDS)
            self._set_patrol(is_on=False)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATROL_SECONDS):
                    await self._found_lost.wait()

    def found_lost(self) -> None:
        """Patrol at once: a gateway that was killed leaves several deliveries."""
        self._found_lost.set()
        self._set_patrol(is_on=True)

    def _set_patrol(self, *, is_on: bool) -> None:
        self._is_on_patrol = is_on and self._is_open
        self._on_change()

    def close(self) -> None:
        """The run is left: tell the waiting clients, hand back the deliveries at hand."""
        self._is_open = False
        self._found_lost.set()  # the patrol is to see it
        for client in list(self._matching.wants):
            self._matching.withdraw(client)
            if isinstance(client, WaitingClient) and not client.handed.done():
                client.handed.set_result(None)
        for offer, claim in self._at_hand.items():
            self._give_up(offer, claim)

    def _make_room(self) -> None:
        if len(self._matching.offers) > SHELF_SIZE:
            first = self._matching.offers[0]
            self._give_up(first, self._at_hand[first])

    def _give_up(self, offer: Offer, claim: asyncio.Future[WaitingClient | None]) -> None:
        if self._matching.withdraw(offer) and not claim.done():
            claim.set_result(None)
