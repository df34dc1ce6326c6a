"""Where a generation ends because of its stop texts: with the token that completes the first of them. Pure.

It is told the ids of the generation one by one from its very first, those of earlier workers included, and what it
answers depends on nothing else: not on chunks, segments, or where the generation went on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from seamlessflow.text.spoken import Spoken
from seamlessflow.text.stops import first_stop


class Stopping:
    """The watch over one generation. stops: not empty. decode, hidden: see ``Spoken``; hidden ids are no text."""

    def __init__(self, stops: Iterable[str], decode: Callable[[Sequence[int]], str], hidden: Container[int] = ()) -> None:
        self.is_complete = False
        """A stop text has been said: the generation is over."""
        self._stops = tuple(stops)
        self._spoken = Spoken(decode, hidden)
        self._num_kept = max(map(len, self._stops)) - 1
        self._tail = ""
        """As much of what was said as a stop text that is not complete may have begun in."""

    def num_kept(self, token_ids: Iterable[int]) -> int:
        """How many of these, which follow those told before, belong to the generation; sets ``is_complete``.

        All of them while no stop text is complete; none once one was.
        """
        num_kept = 0
        for token_id in token_ids:
            if self.is_complete:
                break
            num_kept += 1
            self._tell(self._spoken.add(token_id))
        return num_kept

    def _tell(self, fresh: str) -> None:
        if fresh:
            text = self._tail + fresh
            self.is_complete = first_stop(text, self._stops) is not None
            self._tail = text[max(0, len(text) - self._num_kept) :]
