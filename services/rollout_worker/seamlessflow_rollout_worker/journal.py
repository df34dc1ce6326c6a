"""Reading what the journal says of one generation."""

from __future__ import annotations

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import GenerationClaimed, GenerationEnded, GenerationRequested, SegmentSampled
from seamlessflow.contracts.addresses import subject_filter
from seamlessflow.contracts.streams import journal
from seamlessflow.runtime import Speaker

from .inflight import History


async def read_history(bus: Bus, speaker: Speaker, request: GenerationRequested) -> History:
    """Fold claim, segments and end of a generation. Raises Unavailable when the journal is away."""
    subject = subject_filter(
        SegmentSampled, run=request.run, shard=request.shard, episode=request.episode, generation=request.generation
    )
    history = History()
    async for record in bus.read(journal(request.run), filters=(subject,)):
        event = await speaker.open(record)
        if isinstance(event, GenerationClaimed | SegmentSampled | GenerationEnded):
            history = history.after(event, record.seq)
    return history
