"""Reading a stream in order: direct-get batches, no consumer, no permission to create one.

A request says where to go on, so a server restart costs one repeated request.
Following asks "anything at or after this sequence?" every 2 to 50 ms. An idle follower costs the server twenty empty
answers a second, and in exchange there is no subscription that could be lost without a sign.
A stream that is deleted and made again under its name while it is followed is not noticed: runs do not reuse names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from seamlessflow.bus.base import Record
from seamlessflow.bus.batches import Batches
from seamlessflow.bus.direct import DirectGet
from seamlessflow.bus.patience import Patience
from seamlessflow.bus.wire import Wire

FIRST_LOOK_SECONDS = 0.002
LONGEST_LOOK_SECONDS = 0.05


class Reader:
    def __init__(self, wire: Wire, direct: DirectGet) -> None:
        self._wire = wire
        self._direct = direct

    async def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        """See ``Bus.read``. Filters may overlap; each message comes once."""
        next_seq = start_seq
        while True:
            tail = await self._direct.tail(stream)
            async for record in merged([self._between(stream, each, next_seq, tail) for each in filters or (">",)]):
                yield record
            next_seq = max(next_seq, tail + 1)
            if not follow:
                return
            await self._news(stream, next_seq)

    async def _between(self, stream: str, pattern: str, next_seq: int, tail: int) -> AsyncIterator[Record]:
        """Messages under one pattern with next_seq <= seq <= tail."""
        patience, unserved = Patience(), Patience()
        async with Batches(self._wire, stream) as batches:
            while next_seq <= tail:
                batch = await batches.fetch(pattern, next_seq)
                for record in batch.records:
                    if record.seq > tail:
                        return
                    yield record
                    next_seq = record.seq + 1
                if batch.complete:
                    return
                if not batch.unserved:
                    unserved.forget()
                elif not batch.records:
                    self._direct.give_up_after(unserved, stream)
                    await patience.pause()

    async def _news(self, stream: str, next_seq: int) -> None:
        """Returns when the stream holds something at or after ``next_seq``."""
        patience = Patience(first=FIRST_LOOK_SECONDS, longest=LONGEST_LOOK_SECONDS)
        while await self._direct.get(stream, {"seq": next_seq, "next_by_subj": ">"}) is None:
            await patience.pause()


async def merged(sources: Sequence[AsyncIterator[Record]]) -> AsyncIterator[Record]:
    """Ordered sources as one ordered source; a sequence that several of them hold comes once."""
    if len(sources) == 1:
        async for record in sources[0]:
            yield record
        return
    heads: dict[int, Record] = {}
    behind = list(range(len(sources)))
    last_seq = 0
    while True:
        for index in behind:
            async for record in sources[index]:
                heads[index] = record
                break
        if not heads:
            return
        index = min(heads, key=lambda each: heads[each].seq)
        record = heads.pop(index)
        behind = [index]
        if record.seq > last_seq:
            last_seq = record.seq
            yield record
