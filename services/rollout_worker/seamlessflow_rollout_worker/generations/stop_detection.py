"""Where a generation ends because of its stop texts: with the token that completes the first of them. Pure.

It is told the ids of the generation one by one from its very first, those of earlier workers included, and what it
answers depends on nothing else: not on chunks, segments, or where the generation went on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING

from seamlessflow.contracts import GenerationRequested
from seamlessflow.tokenization.detokenizer import Spoken
from seamlessflow.tokenization.stop_strings import first_stop

if TYPE_CHECKING:
    from seamlessflow.tokenization.tokenizer import ChatTokenizer


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


# The text side of a run: watches for stop texts, with the tokenizer of the run's model.
#
# A worker samples ids and needs no tokenizer until the first generation with stop texts comes; then it is loaded, once.


class Texts:
    """Texts of one run. ``load`` blocks; it raises Unavailable, or BadInput for a model without a usable tokenizer."""

    def __init__(self, load: Callable[[], ChatTokenizer]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self._tokenizer: ChatTokenizer | None = None

    async def stopping(self, request: GenerationRequested, token_ids: Sequence[int]) -> Stopping | None:
        """The watch over a generation that was told its tokens so far; None: it has no stop texts. Raises as ``load`` does."""
        stops = [stop for stop in request.stop if stop]
        if not stops:
            return None
        tokenizer = await self._loaded()
        stopping = Stopping(stops, tokenizer.decode, tokenizer.hidden_ids(request.stop_token_ids))
        if token_ids:  # some microseconds a token: of a long history other generations should not wait for
            await asyncio.to_thread(stopping.num_kept, token_ids)
        return stopping

    async def _loaded(self) -> ChatTokenizer:
        async with self._loading:
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(self._load)
            return self._tokenizer
