"""Where deliveries of one external environment meet the agents that ask for them.

    delivery ─▶ opening (being read) ─▶ at hand ─▶ claimed by somebody who asked ─▶ an episode, acknowledged at its end
                                          └─ nobody asked in time ─▶ handed back to the queue

So that nothing is held for nobody, only as many deliveries are pulled as somebody waits for. While one certain task is
looked for, the others that come lie at hand for a while, for the next request here; not for long, they may be wanted elsewhere.

And one now and then though nobody waits: what a gateway held that was killed comes again before all else, and its end is
still to be said. What nobody waits for goes straight back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from seamlessflow.bus.base import Delivery

if TYPE_CHECKING:
    from .external_episode import ExternalEpisode


# Who asks for an episode, and which episodes are at hand: at every moment nobody asks for what is at hand. Pure.
#
# Who asks for one task has no other choice, and so comes before those who take anything; else whoever asked first. Of the
# episodes at hand the one that was opened first is given, so the members of a group go out one after the other.


_NUMBERS = count()


@dataclass(eq=False)
class Want:
    """One request for an episode. ``task`` None: whichever comes."""

    task: str | None = None
    number: int = field(default_factory=_NUMBERS.__next__)


@dataclass(eq=False)
class Offer:
    """One episode at hand. ``seq``: its place in the queue."""

    task: str
    seq: int


class Matching:
    """Feed it wants and offers. Each of either is given at most once, and only together with one that fits."""

    def __init__(self) -> None:
        self.wants: list[Want] = []
        """In the order they asked."""
        self.offers: list[Offer] = []
        """In the order they came."""

    def ask(self, want: Want) -> Offer | None:
        """What there is for it; None: it waits. One that asks again has its old place."""
        fitting = [offer for offer in self.offers if want.task in (None, offer.task)]
        if fitting:
            return self._taken(min(fitting, key=lambda offer: offer.seq))
        self.wants.append(want)
        self.wants.sort(key=lambda each: each.number)
        return None

    def offer(self, offer: Offer) -> Want | None:
        """Who gets it; None: it lies at hand."""
        fitting = [want for want in self.wants if want.task in (None, offer.task)]
        if fitting:
            want = min(fitting, key=lambda each: (each.task is None, each.number))
            self.wants.remove(want)
            return want
        self.offers.append(offer)
        return None

    def withdraw(self, one: Want | Offer) -> bool:
        """Whether it was still waiting; it is not any more."""
        waiting: list[Want] | list[Offer] = self.wants if isinstance(one, Want) else self.offers
        if one not in waiting:
            return False
        waiting.remove(one)  # type: ignore[arg-type]
        return True

    def _taken(self, offer: Offer) -> Offer:
        self.offers.remove(offer)
        return offer


SHELF_SECONDS = 2.0
"""How long an episode lies at hand before it is handed back."""
SHELF_SIZE = 256
"""So many lie at hand; for one more the first is handed back, so that a search for one task gets through a long queue."""
PATROL_SECONDS = 10.0
"""How often one is pulled though nobody waits, from the start on."""
PATROL_PULL_SECONDS = 0.25
"""For how long it may come; longer, and it would be one that somebody opens only then."""


@dataclass(eq=False)
class Asking(Want):
    """Somebody waits for an episode. ``is_there``: whether its client still does."""

    is_there: Callable[[], bool] = lambda: True
    handed: asyncio.Future[ExternalEpisode | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The started episode. None: the run was left meanwhile."""
    is_claimed: bool = False
    """An episode is being started for it."""
    is_gone: bool = False
    """Nobody waits for it any more."""


class Outlet:
    """One environment of one run. ``on_change`` hears that more or fewer deliveries are wanted."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._matching = Matching()
        self._at_hand: dict[Offer, asyncio.Future[Asking | None]] = {}
        self._opening: set[Delivery] = set()
        self._is_open = True
        self._is_on_patrol = False
        self._found_lost = asyncio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits here."""
        return bool(self._matching.wants)

    @property
    def num_missing(self) -> int:
        """How many more deliveries are wanted."""
        return max(0, max(len(self._matching.wants), int(self._is_on_patrol)) - len(self._opening))

    @property
    def num_unclaimed(self) -> int:
        """Deliveries in our hands that nobody has claimed."""
        return len(self._opening) + len(self._at_hand)

    def ask(self, asking: Asking) -> None:
        """Wait for an episode, or be given one that is at hand. Again, after one that turned out to be over: as before."""
        if asking.is_gone or asking.handed.done():
            return
        if not self._is_open:
            asking.handed.set_result(None)
            return
        offer = self._matching.ask(asking)
        asking.is_claimed = offer is not None
        if offer is not None:
            self._at_hand[offer].set_result(asking)
        self._on_change()

    def withdraw(self, asking: Asking) -> None:
        """Wait no more."""
        asking.is_gone = True
        self._matching.withdraw(asking)
        self._on_change()

    def entered(self, delivery: Delivery) -> None:
        """It is being read."""
        self._opening.add(delivery)
        self._is_on_patrol = False

    def settled(self, delivery: Delivery) -> None:
        """It turned out to be something, or nothing. Idempotent."""
        self._opening.discard(delivery)

    async def claimed(self, task: str, delivery: Delivery) -> Asking | None:
        """Who gets the delivered episode of this task. None: nobody came for it."""
        offer = Offer(task, delivery.seq)
        self.settled(delivery)
        while isinstance(taker := self._matching.offer(offer), Asking):
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
        """Now and then, until cancelled."""
        while self._is_open:
            self._found_lost.clear()
            self._set_patrol(is_on=True)
            await asyncio.sleep(PATROL_PULL_SECONDS)
            self._set_patrol(is_on=False)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATROL_SECONDS):
                    await self._found_lost.wait()

    def found_lost(self) -> None:
        """Where one was left by a gateway that was killed, there are more."""
        self._found_lost.set()
        self._set_patrol(is_on=True)

    def _set_patrol(self, *, is_on: bool) -> None:
        self._is_on_patrol = is_on and self._is_open
        self._on_change()

    def close(self) -> None:
        """The run is left: whoever waits is told, whatever is at hand is handed back."""
        self._is_open = False
        self._found_lost.set()  # the patrol is to see it
        for asking in list(self._matching.wants):
            self._matching.withdraw(asking)
            if isinstance(asking, Asking) and not asking.handed.done():
                asking.handed.set_result(None)
        for offer, claim in self._at_hand.items():
            self._give_up(offer, claim)

    def _make_room(self) -> None:
        if len(self._matching.offers) > SHELF_SIZE:
            first = self._matching.offers[0]
            self._give_up(first, self._at_hand[first])

    def _give_up(self, offer: Offer, claim: asyncio.Future[Asking | None]) -> None:
        if self._matching.withdraw(offer) and not claim.done():
            claim.set_result(None)
