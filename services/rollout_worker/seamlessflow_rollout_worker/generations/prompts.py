"""Reading what the journal says of one generation."""

from __future__ import annotations

from collections import OrderedDict

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import GenerationClaimed, GenerationEnded, GenerationRequested, Int32s, SegmentSampled
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.runtime import Journal

from .generation_state import History


async def read_history(bus: Bus, journal: Journal, request: GenerationRequested) -> History:
    """Fold claim, segments and end of a generation. Raises Unavailable when the journal is away."""
    subject = subject_filter(
        SegmentSampled, run=request.run, shard=request.shard, episode=request.episode, generation=request.generation
    )
    history = History()
    async for record in bus.read(journal_stream(request.run), filters=(subject,)):
        event = await journal.open(record)
        if isinstance(event, GenerationClaimed | SegmentSampled | GenerationEnded):
            history = history.after(event, record.seq)
    return history


# The full prompt of a generation: its parent's tokens, which are in the journal, and its own suffix.
#
# A cache keeps what this worker sampled or read, so that the turns of an episode that come back here read nothing.


CACHED_TOKENS = 8_000_000
"""Bound of the cache: 32 MB of ids."""

Key = tuple[str, str]


class TokenCache:
    """(episode, generation) to all its tokens, prompt and sampled. Forgets what was not used longest."""

    def __init__(self, max_tokens: int = CACHED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._ids: OrderedDict[Key, Int32s] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def get(self, key: Key) -> Int32s | None:
        if (ids := self._ids.get(key)) is not None:
            self._ids.move_to_end(key)
        return ids

    def put(self, key: Key, ids: Int32s) -> None:
        self.forget(key)
        self._ids[key] = ids
        self._num_tokens += len(ids)
        while self._num_tokens > self._max_tokens:
            self.forget(next(iter(self._ids)))

    def forget(self, key: Key) -> None:
        if (ids := self._ids.pop(key, None)) is not None:
            self._num_tokens -= len(ids)


class Prompts:
    """Prompts of generations, whoever sampled their parents."""

    def __init__(self, bus: Bus, journal: Journal, cache: TokenCache | None = None) -> None:
        self._bus = bus
        self._journal = journal
        self._cache = TokenCache() if cache is None else cache

    async def prompt_of(self, request: GenerationRequested) -> Int32s:
        """All ids the engine is fed. Raises Unavailable when the journal does not hold the whole chain (yet),
        BadInput when the chain is a circle."""
        chain = [request]
        while (known := self._known_before(chain[-1])) is None:
            chain.append(await self._parent_of(chain[-1]))
            if chain[-1].generation in (each.generation for each in chain[:-1]):
                raise BadInput(f"generation {request.generation} of episode {request.episode} has itself among its ancestors")
        oldest = chain.pop()
        prompt = known + oldest.suffix
        while chain:
            child = chain.pop()
            whole = prompt + (await read_history(self._bus, self._journal, oldest)).token_ids
            _check_length(child, whole)
            self.remember(oldest, whole)
            prompt, oldest = whole + child.suffix, child
        return prompt

    def remember(self, request: GenerationRequested, ids: Int32s) -> None:
        """All tokens, prompt and sampled, of a generation whose end is stored."""
        self._cache.put((request.episode, request.generation), ids)

    def _known_before(self, request: GenerationRequested) -> Int32s | None:
        """The tokens its suffix follows, where that needs no journal."""
        if request.parent is None:
            return Int32s()
        ids = self._cache.get((request.episode, request.parent))
        return ids if ids is not None and len(ids) == request.parent_tokens else None

    async def _parent_of(self, request: GenerationRequested) -> GenerationRequested:
        found = await self._journal.first(GenerationRequested, request.run, episode=request.episode, generation=request.parent)
        if found is None:
            raise Unavailable(
                f"generation {request.generation} of episode {request.episode} continues {request.parent}, "
                "which the journal does not hold; it is handed back until it does"
            )
        return found


def _check_length(child: GenerationRequested, parent_ids: Int32s) -> None:
    if len(parent_ids) != child.parent_tokens:
        raise Unavailable(
            f"generation {child.generation} of episode {child.episode} starts behind {child.parent_tokens} tokens of "
            f"{child.parent}, but the journal holds {len(parent_ids)}; it is handed back until they agree"
        )
