"""Ending a generation that can never be sampled, so that its call gets an error instead of waiting for its deadline."""

from __future__ import annotations

from seamlessflow.bus.base import Bus, Delivery
from seamlessflow.contracts import CallRequested, GenerationEnded, GenerationFinish, GenerationRequested, SegmentSampled
from seamlessflow.contracts.addresses import subject_filter
from seamlessflow.contracts.streams import journal
from seamlessflow.errors import BadInput
from seamlessflow.runtime import Inbox, Speaker

NONCE = "refused"
"""The same for whoever says it: a generation is refused once."""


async def end_refused(bus: Bus, speaker: Speaker, inbox: Inbox, delivery: Delivery) -> None:
    """Say GenerationEnded with REFUSED for a delivery, which may be unreadable; nothing if its end is stored.

    Raises SequenceMismatch when somebody claimed it meanwhile.
    """
    _, run, _, _, _, episode, generation = delivery.subject.split(".")
    shard = await _shard_of(bus, inbox, delivery)
    if shard is None:
        return  # nobody asked for it
    subject = subject_filter(SegmentSampled, run=run, shard=shard, episode=episode, generation=generation)
    last_seq = 0
    lengths: dict[int, int] = {}  # of segments, by their start
    async for record in bus.read(journal(run), filters=(subject,)):
        last_seq = record.seq
        try:
            event = await speaker.open(record)
        except BadInput:
            continue  # perhaps the reason why it is refused
        if isinstance(event, GenerationEnded) or (isinstance(event, SegmentSampled) and event.finish is not None):
            return
        if isinstance(event, SegmentSampled):
            lengths.setdefault(event.start, len(event.token_ids))
    end = GenerationEnded(
        run=run,
        episode=episode,
        generation=generation,
        shard=shard,
        nonce=NONCE,
        finish=GenerationFinish.REFUSED,
        num_tokens=sum(lengths.values()),
    )
    await speaker.append(end, last_seq)


async def _shard_of(bus: Bus, inbox: Inbox, delivery: Delivery) -> int | None:
    """From the request, or where that is unreadable from the subject of its call. None: there is no such call."""
    try:
        request = await inbox.open(delivery)
    except BadInput:
        request = None
    if isinstance(request, GenerationRequested):
        return request.shard
    _, run, _, _, _, episode, generation = delivery.subject.split(".")
    asked = await bus.first(journal(run), subject_filter(CallRequested, run=run, episode=episode, call=generation))
    return None if asked is None else int(asked.subject.split(".")[3])
