"""Who asks for an episode, and which episodes are at hand: at every moment nobody asks for what is at hand. Pure.

Who asks for one task has no other choice, and so comes before those who take anything; else whoever asked first. Of the
episodes at hand the one that was opened first is given, so the members of a group go out one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

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
