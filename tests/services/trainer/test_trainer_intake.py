"""What the trainer makes of deliveries whose opening takes long, fails, or gives what cannot be trained."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from seamlessflow.bus.base import Delivery
from seamlessflow.contracts import DropReason, Event, Float32s, GroupDropped, Int32s, Sample, SamplesReady, TrainingEndRequested
from seamlessflow.contracts.subjects import subject_of
from seamlessflow.errors import BadInput, MalformedMessage, Unavailable
from seamlessflow_trainer.data.groups import GroupBook
from seamlessflow_trainer.data.sample_queue import SampleQueue
from tests.services.trainer.trainer_world import RUN, VOCABULARY, samples_ready


class Message:
    """A delivery that notes how it ended."""

    def __init__(self, event: Event, seq: int) -> None:
        self.event, self.seq, self.subject, self.payload, self.headers = event, seq, subject_of(event), b"", {}
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fate = ""

    async def ack(self) -> None:
        self.fate = "ack"

    async def nak(self, delay_seconds: float = 0.0) -> None:
        self.fate = "nak"

    async def in_progress(self) -> None:
        pass


class Post:
    """EventHandlers and journal of an intake: opening ends when the test says so."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.handlers = self.journal = self
        self.nonce = "ours"

    async def open(self, delivery: Any) -> Event:
        await delivery.opened
        event: Event = delivery.event
        return event

    async def dead_letter(self, delivery: Any, reason: str) -> None:
        delivery.fate = f"dead: {reason}"

    async def append(self, event: Event) -> None:
        self.said.append(event)


def an_intake(post: Post, *, closed: tuple[str, ...] = ()) -> SampleQueue:
    book = GroupBook(group_size=2, max_attempts=2, drop_zero_variance=True, closed=closed)
    context: Any = SimpleNamespace(handlers=post, journal=post)
    claim: Any = post
    return SampleQueue(context, claim, RUN, book, group_size=2, vocab_size=VOCABULARY)


async def arrive(sample_queue: SampleQueue, message: Message, failure: Exception | None = None, *, opens: bool = True) -> None:
    """Deliver it; ``opens`` False: its bytes are still on their way when this returns."""
    delivery: Any = message
    task = asyncio.create_task(sample_queue.on_delivery(delivery))
    if failure is not None:
        message.opened.set_exception(failure)
    elif opens:
        message.opened.set_result(None)
    await asyncio.sleep(0.01)
    assert task.done() == (opens or failure is not None)


def member(index: int, group: str = "g", *, broken: bool = False) -> SamplesReady:
    ids = [3, 4, VOCABULARY if broken else 5]
    sample = Sample(token_ids=Int32s(ids), spans=((2, 3),), logprobs=Float32s([-1.0]), versions=((0, 1),))
    return samples_ready(group, index, [sample], float(index))


@pytest.mark.parametrize("store_was_away", [False, True])
async def test_the_end_waits_for_samples_that_came_before_it(store_was_away: bool) -> None:
    """The last step would else miss the groups whose samples are large and still being read from the store."""
    sample_queue = an_intake(Post())
    slow = Message(member(1), 2)
    await arrive(sample_queue, Message(member(0), 1))
    await arrive(sample_queue, slow, Unavailable("store") if store_was_away else None, opens=False)
    end = TrainingEndRequested(run=RUN, reason="tasks_ended", train_rest=True)
    await arrive(sample_queue, Message(end, 3))
    await arrive(sample_queue, Message(member(0, "later"), 4), opens=False)
    assert sample_queue.end is None

    if store_was_away:
        await arrive(sample_queue, Message(member(1), 2))
    else:
        slow.opened.set_result(None)
        await asyncio.sleep(0.01)
    assert sample_queue.end == end and [group.group for group in sample_queue.book.ready] == ["g"]


async def test_an_end_that_wants_no_further_step_waits_for_nothing() -> None:
    """Somebody stops the run."""
    sample_queue = an_intake(Post())
    await arrive(sample_queue, Message(member(0), 1), opens=False)
    await arrive(sample_queue, Message(TrainingEndRequested(run=RUN, reason="stopped", train_rest=False), 2))

    assert sample_queue.end is not None and sample_queue.stop_now.is_set()


async def test_an_end_does_not_wait_for_what_is_a_dead_letter() -> None:
    """It never becomes samples."""
    sample_queue = an_intake(Post())
    rotten = Message(member(0), 1)
    await arrive(sample_queue, rotten, opens=False)
    await arrive(sample_queue, Message(TrainingEndRequested(run=RUN, reason="tasks_ended", train_rest=True), 2))
    assert sample_queue.end is None
    rotten.opened.set_exception(MalformedMessage("rot"))
    await asyncio.sleep(0.01)

    assert sample_queue.end is not None


@pytest.mark.parametrize("failure", [None, MalformedMessage("not a SamplesReady"), BadInput("blob is gone")])
async def test_a_group_with_a_member_that_is_a_dead_letter_is_dropped(failure: BadInput | None) -> None:
    """It could never be complete: said to have failed, and what was held of it is acknowledged; so is what still comes."""
    post = Post()
    sample_queue = an_intake(post)
    held, bad, late = Message(member(0), 1), Message(member(1, broken=True), 2), Message(member(0), 3)
    await arrive(sample_queue, held)
    await arrive(sample_queue, bad, failure)
    await arrive(sample_queue, late)

    assert post.said == [GroupDropped(run=RUN, group="g", reason=DropReason.FAILED, nonce="ours")]
    assert bad.fate.startswith("dead: ") and (held.fate, late.fate) == ("ack", "ack")


async def test_a_dead_letter_changes_nothing_for_a_group_that_is_complete_or_closed() -> None:
    """What is complete may be in a step already; its end is said by whoever commits it."""
    post = Post()
    sample_queue = an_intake(post, closed=("over",))
    for index in (0, 1):
        await arrive(sample_queue, Message(member(index), index + 1))
    await arrive(sample_queue, Message(member(1, broken=True), 3))
    await arrive(sample_queue, Message(member(1, "over", broken=True), 4))

    assert post.said == [] and [group.group for group in sample_queue.book.ready] == ["g"]


def test_deliveries_here_are_deliveries() -> None:
    """The double has what the real thing has."""
    names = {name for name in vars(Delivery) if not name.startswith("_")} - {"term", "num_delivered"}
    assert names <= {*vars(Message), "event", "seq", "subject", "payload", "headers"}
