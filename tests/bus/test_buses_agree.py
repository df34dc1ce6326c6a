"""The memory bus is what it claims to be: it answers like the real one, whatever is published in whatever order."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seamlessflow.bus.base import Bus, Message, StreamSpec
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.errors import SequenceMismatch

_runs = itertools.count(1)


@dataclass(frozen=True)
class Publish:
    """One call: which subject, whose id, what it expects to be last, compared over which subjects."""

    tail: str
    message_id: str
    after: int | None
    compared: str | None


publishes = st.builds(
    Publish,
    tail=st.sampled_from(["a.1", "a.2", "b.1"]),
    message_id=st.sampled_from(["m1", "m2", "m3", "m4"]),
    after=st.sampled_from([None, None, 0, 1, 2, 3]),
    compared=st.sampled_from([None, None, "a.*", "*.1"]),
)


async def outcomes(bus: Bus, run: str, calls: list[Publish]) -> list[object]:
    """What each call answered, and what is stored in the end."""
    await bus.ensure_stream(StreamSpec(f"J_{run}", subjects=(f"sf.{run}.>",)))
    answers: list[object] = []
    for call in calls:
        compared = f"sf.{run}.{call.compared}" if call.after is not None and call.compared else None
        message = Message(
            f"sf.{run}.{call.tail}",
            b"",
            call.message_id,
            expected_last_seq=call.after,
            expected_subject=compared,
        )
        try:
            answers.append(await bus.publish(message))
        except SequenceMismatch:
            answers.append("refused")
    answers += [(record.seq, record.subject, record.message_id) async for record in bus.read(f"J_{run}")]
    await bus.delete_stream(f"J_{run}")
    await bus.close()
    return answers


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(publishes, max_size=8))
def test_both_buses_give_the_same_answers(nats_server, calls):
    """Duplicates, fences over one subject and over many, repeats of an append: same sequences, same refusals."""
    run = f"agree{next(_runs)}"

    async def compare() -> None:
        real = await outcomes(await connect(nats_server.url, name="agree"), run, calls)
        assert await outcomes(MemoryBus(), run, calls) == real

    asyncio.run(compare())
