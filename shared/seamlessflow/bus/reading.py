"""Reading a stream in order: direct-get batches, no consumer, no permission to create one.

A request says where to go on, so a server restart costs one repeated request.
Following asks "what is last?" every 0.1 s, every 0.25 s while nothing comes, and reads what is new in one batch. That costs
four answers a second, and in exchange there is no subscription that could be lost without a sign.
A stream that is deleted and made again under its name while it is followed is not noticed: runs do not reuse names.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence

from seamlessflow.bus.base import Record
from seamlessflow.bus.batches import Batches
from seamlessflow.bus.direct import DirectGet
from seamlessflow.bus.patience import Patience
from seamlessflow.bus.wire import Wire

FIRST_LOOK_SECONDS = 0.1
LONGEST_LOOK_SECONDS = 0.25


class Reader:
    def __init__(self, wire: Wire, direct: DirectGet) -> None:
        self._wire = wire
        self._direct = direct

    async def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        """See ``Bus.read``. Filters may overlap; each message comes once."""
        next_seq = start_seq
        idle = _idle()
        while True:
            tail = await self._direct.tail(stream)
            if tail >= next_seq:
                async for record in merged([self._between(stream, each, next_seq, tail) for each in filters or (">",)]):
                    yield record
                next_seq, idle = tail + 1, _idle()
            if not follow:
                return
            await idle.pause()

    def read_all(self, stream: str, pattern: str) -> AsyncIterator[Record]:
        """All there is under a pattern, and what is stored meanwhile: of a stream that keeps one message per subject,
        the newest of every subject that has one all the time. A subject may come twice, the newest last.
        """
        return self._between(stream, pattern, 1, sys.maxsize)

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


def _idle() -> Patience:
    """The pauses between looks that find nothing."""
    return Patience(first=FIRST_LOOK_SECONDS, longest=LONGEST_LOOK_SECONDS)


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
