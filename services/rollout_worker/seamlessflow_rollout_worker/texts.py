"""The text side of a run: watches for stop texts, with the tokenizer of the run's model.

A worker samples ids and needs no tokenizer until the first generation with stop texts comes; then it is loaded, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seamlessflow.contracts import GenerationRequested

from .stopping import Stopping

if TYPE_CHECKING:
    from seamlessflow.text.tokenizer import ChatTokenizer


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
