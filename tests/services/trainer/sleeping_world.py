"""A run of three steps that several lives of the real trainer take part in, in one of many orders of their calls. Not a test.

A plan (``sleeping_plans``) decides everything that may differ; ``play(plan)`` gives what happened. The lease goes from one
life to the next at each misfortune; the last life has none, and must end the training. Nothing is real but the trainer: the
clock jumps, threads are greenlets (``virtual_time``), bus and store are dictionaries, and the learner has three numbers.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import json
import logging
import secrets
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import structlog

import seamlessflow.bus.memory.stream
import seamlessflow.runtime.context
import seamlessflow_trainer.service
from seamlessflow.bus.base import Message, Stored
from seamlessflow.bus.memory.bus import MemoryServer
from seamlessflow.bus.memory.stream import MemoryBucket
from seamlessflow.checkpoints.commit_claim import CommitClaim, publish_rest, read_commits
from seamlessflow.codec import decode, pack_record, to_message
from seamlessflow.contracts import (
    DropReason,
    EpisodeEnded,
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    Float32s,
    GroupDropped,
    GroupTrained,
    Int32s,
    Lease,
    Role,
    RunEnded,
    RunStarted,
    Sample,
    SegmentSampled,
    Service,
    StepsCommitted,
)
from seamlessflow.contracts.routes import HINT_POKE, LEASES_BUCKET
from seamlessflow.contracts.streams import consumer_name, journal_stream, queue_stream, run_consumers, run_streams
from seamlessflow.contracts.subjects import matches
from seamlessflow.errors import Superseded
from seamlessflow.runtime import Journal, make_context
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trainer.service import Trainer
from tests.services.trainer.sleeping_lives import Fault, Life, LifeBus, LifeStore, Misfortune
from tests.services.trainer.sleeping_plans import Plan
from tests.services.trainer.three_numbers import ThreeNumbers
from tests.services.trainer.trainer_world import RUN, samples_ready
from tests.services.trainer.virtual_time import Stuck, VirtualTimeLoop, threads_inline

STEPS, KEEP = 3, 2
TEACHING = ("g0", "g1", "g2", "g3", "g4")
"""Groups that a step can be taken on, in the order in which they are there."""
EQUAL = "g5"
"""Its members have equal rewards."""
NUM_TOKENS = 2
END_SECONDS = 400.0
"""Of the clock that jumps: the last life has ended the training by then, though sleepers hold deliveries for a while."""
SETTLE_SECONDS = 8.0
"""How long late lives go on once it ended."""


@dataclass(slots=True)
class Outcome:
    """What an order left behind."""

    plan: Plan
    calls: list[tuple[str, str]] = field(default_factory=list)
    """(life, call) as they took effect."""
    said: list[str] = field(default_factory=list)
    """Misfortunes and ends of lives, for people, each with the number of calls before it."""
    wrong: list[str] = field(default_factory=list)
    """What was seen to be wrong while it went on."""
    events: list[Event] = field(default_factory=list)
    """The journal."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """The store."""

    @property
    def order(self) -> bytes:
        """A digest of who did what, in order."""
        return hashlib.blake2b(repr(self.calls).encode(), digest_size=16).digest()

    @property
    def order_of_writes(self) -> bytes:
        """The same, without the calls that only look."""
        writes = [each for each in self.calls if each[1].split(" ", 1)[0] in WRITES]
        return hashlib.blake2b(repr(writes).encode(), digest_size=16).digest()

    def story(self) -> str:
        """To play it again, and to read."""
        return "\n".join([f"seed {self.plan.seed}: {self.plan}", *self.said, *(f"{who}: {call}" for who, call in self.calls)])


WRITES = {"publish", "put", "create", "update", "delete", "ack", "nak", "term", "write", "remove"}


class UnfencedServer(MemoryServer):
    """Compares nothing but whether a subject was used before: what exists once exists once, and no fence holds."""

    def publish(self, message: Message) -> Stored:
        is_once = message.expected_last_seq == 0 and message.expected_subject in (None, message.subject)
        return super().publish(message if is_once else replace(message, expected_last_seq=None, expected_subject=None))


class SleepingWorld:
    """One order, while it is played. A scheduler that moves the lease, a supervisor that restarts what ends with an error."""

    def __init__(self, outcome: Outcome, server: MemoryServer, folder: Path) -> None:
        self.plan, self.outcome = outcome.plan, outcome
        self._random, self._server, self._folder = Random(outcome.plan.seed), server, folder
        self._lives: list[Life] = []
        self._asleep: dict[Life, int | None] = {}
        self._left_behind: list[tuple[int | None, str, Callable[[], object]]] = []
        """Changes to the store that are still to come: after so many calls, or at the end."""
        self._buses: dict[Life, LifeBus] = {}
        self._current: Life | None = None
        self._over = asyncio.Event()
        self._is_ended = False
        """Training or the run: who holds samples of open groups acknowledges them, and the scheduler drops those."""
        self._epoch = 0
        self._tasks: dict[Life, asyncio.Task[None]] = {}
        self._stopping: dict[Life, asyncio.Event] = {}
        self._aborts: list[asyncio.Task[None]] = []
        self._events = [event for event, _ in fed()]
        """The journal, as far as it was read."""

    def delay_seconds(self) -> float:
        longest = self._random.choice(self.plan.longest_delays)
        return self._random.random() * longest if longest else 0.0

    def on_call(self, life: Life, call: str) -> None:
        self.outcome.calls.append((life.name, call))
        if call == f"publish sf.{RUN}.ev.training.ended":
            self._over.set()
            self._is_ended = True
        self._carry_out()
        for sleeper, calls in list(self._asleep.items()):
            if calls is not None and sleeper is not life:
                self._asleep[sleeper] = calls - 1
                if calls <= 1:
                    self._wake(sleeper)

    def on_misfortune(self, life: Life, misfortune: Misfortune, call: str) -> None:
        self._publish(f"{life.name}: {misfortune.fault.name} at point {misfortune.at_point} ({call})")
        if life.is_asleep:
            self._asleep[life] = misfortune.wakes_after
        elif misfortune.fault is Fault.KILLED:
            life.kill()
            self._tasks[life].cancel()
            self._aborts.append(asyncio.create_task(self._buses[life].abort()))
        elif misfortune.fault is Fault.TERMINATED:
            self._stopping[life].set()

    def on_acknowledged(self, life: Life, subject: str) -> None:
        group = subject.split(".")[3]
        if not self._is_ended and group not in closed_groups(self._journal()):
            self.outcome.wrong.append(f"{life.name} acknowledged samples of {group}, which is not closed")

    def later(self, life: Life, call: str, change: Callable[[], object], num_calls: int | None) -> None:
        at = None if num_calls is None else len(self.outcome.calls) + num_calls
        self._left_behind.append((at, f"{life.name}: {call}", change))

    def _carry_out(self, *, all_of_them: bool = False) -> None:
        due = [
            each for each in self._left_behind if all_of_them or (each[0] is not None and each[0] <= len(self.outcome.calls))
        ]
        for each in due:
            self._left_behind.remove(each)
            self._publish(f"{each[1]} is carried out")
            each[2]()

    async def play(self) -> None:
        """Fills in the outcome."""
        self._open()
        for misfortunes in self.plan.lives:
            if not misfortunes and self.plan.is_stopped:
                break
            if misfortunes or not await self._return():
                await self._start(misfortunes)
            if await self._until_struck(self._lives[-1], is_last=not misfortunes):
                break
            await asyncio.sleep(self.plan.lease_moves_after)
        if not self.plan.is_stopped and not self._over.is_set():
            self.outcome.wrong.append(f"the last life did not end the training within {END_SECONDS:g} s")
        await self._close()
        self._wake_all()
        await asyncio.sleep(SETTLE_SECONDS)
        await self._end()
        self._carry_out(all_of_them=True)
        self.outcome.events = self._journal()

    def _open(self) -> None:
        journal_spec, *queues = run_streams(RUN)
        name = queue_stream(Service.TRAINER, RUN)
        self._server.ensure_stream(journal_spec)
        self._server.ensure_stream(next(each for each in queues if each.name == name))
        for consumer in run_consumers(RUN, envs=["sums"], shards=1, tags=["rollout"], buckets=1):
            if consumer.name == consumer_name(Service.TRAINER) and consumer.stream == name:
                self._server.ensure_consumer(consumer)
        for _, message in fed():
            self._server.publish(message)
        self._server.publish(to_message(RunStarted(run=RUN, document=self._document())))

    def _document(self) -> dict[str, object]:
        return {
            "model": {"name": str(self._folder / "model"), "dtype": "float32"},
            "agents": [{"env": "sums", "command": ["true"], "reward": "a:b"}],
            "algorithm": {"steps": STEPS, "groups_per_step": 1, "group_size": 2, "max_staleness": 9},
            "checkpoints": {"every_steps": self.plan.every_steps, "keep": KEEP},
            "weights": {"full_every": 1},
        }

    async def _start(self, misfortunes: tuple[Misfortune, ...]) -> None:
        """The next life, which gets the lease."""
        number = len(self._tasks)
        life = Life("abcdefgh"[number], self, misfortunes)
        node = "a" if self.plan.is_one_node else life.name
        self._lives.append(life)
        self._tasks[life] = asyncio.create_task(self._supervise(life, node))
        await self._move_lease(life)

    async def _return(self) -> bool:
        """Give the lease back to the first life. False: it is not to be, or that is gone."""
        if not self._lives or not self.plan.first_is_last or self.plan.is_one_node:
            return False
        life = self._lives[0]
        if life.is_dead or self._tasks[life].done() or self._stopping[life].is_set():
            return False
        if life.is_asleep:
            self._wake(life)
        life.spare()
        self._publish(f"{life.name}: gets the lease again")
        await self._move_lease(life)
        return True

    async def _move_lease(self, life: Life) -> None:
        earlier, self._current = self._current, life
        if not self.plan.is_one_node or earlier is None:
            if earlier is not None:
                await self._lease(earlier.name, Role.IDLE, is_trainer=False)
            await self._lease(life.name, Role.TRAIN, is_trainer=True)

    async def _lease(self, node: str, role: Role, *, is_trainer: bool) -> None:
        self._epoch += 1
        lease = Lease(run=RUN, role=role, epoch=self._epoch, trainer=is_trainer)
        bucket = self._server.buckets.setdefault(LEASES_BUCKET, MemoryBucket(LEASES_BUCKET))
        await bucket.put(node, pack_record(lease))
        self._server.hint(HINT_POKE.format(node=node), b"")

    async def _supervise(self, life: Life, node: str) -> None:
        """Its process, and as long as it has the lease, another one after one that ended with an error."""
        work_dir = self._folder / f"work-{life.name}"
        while True:
            try:
                await self._run(life, node, work_dir)
                return
            except asyncio.CancelledError:
                return
            except Exception as wrong:
                self._publish(f"{life.name} ended: {type(wrong).__name__}: {str(wrong)[:200]}")
            life.struck.set()
            if self._current is not life or self._stopping[life].is_set():
                return
            await asyncio.sleep(1.0)

    async def _run(self, life: Life, node: str, work_dir: Path) -> None:
        bus = self._buses[life] = LifeBus(self._server, life)
        settings = base_settings().model_copy(update={"node": node, "work_dir": work_dir})
        store = LifeStore(self.outcome.objects, life)
        with patch.object(seamlessflow.runtime.context, "Store", lambda url, limits: store):
            context = make_context(Service.TRAINER, settings, bus, capabilities=("train",))
        self._stopping[life] = context.stopping
        try:
            await Trainer(context, settings, build=lambda *_: ThreeNumbers()).run()
        finally:
            await bus.close()

    async def _until_struck(self, life: Life, *, is_last: bool) -> bool:
        """Whether training ended meanwhile."""
        waits = [asyncio.create_task(each.wait()) for each in (self._over, *([] if is_last else [life.struck]))]
        await asyncio.wait(waits, timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if not is_last:
            return self._over.is_set()
        if not self._over.is_set():  # sleepers that wake when the others are done may be what it waits for
            self._wake_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._over.wait()
        return self._over.is_set()

    def _wake_all(self) -> None:
        for life in list(self._asleep):
            self._wake(life)

    def _wake(self, life: Life) -> None:
        del self._asleep[life]
        self._publish(f"{life.name}: wakes")
        life.wake()

    async def _close(self) -> None:
        """One scheduler after the other closes the run for good, until one of them came to the end of it."""
        for number, misfortunes in enumerate((self.plan.scheduler, ())):
            life = Life(f"scheduler-{number}", self, misfortunes)
            self._lives.append(life)
            self._tasks[life] = asyncio.create_task(self._close_as(life))
            struck = asyncio.create_task(life.struck.wait())
            await asyncio.wait((self._tasks[life], struck), return_when=asyncio.FIRST_COMPLETED)
            struck.cancel()
            if not life.struck.is_set():
                break
        await self._tasks[life]
        self._is_ended = True

    async def _close_as(self, life: Life) -> None:
        """As a scheduler does it: by a claim of its own, behind which nothing of a trainer's counts."""
        bus = self._buses[life] = LifeBus(self._server, life)
        journal = Journal(bus, LifeStore(self.outcome.objects, life))
        claim = CommitClaim(bus, journal, RUN, life.name)
        await claim.take(closes=True)
        await publish_rest(bus, journal, RUN)
        history = await read_commits(bus, journal, RUN)
        closed = closed_groups(self._journal())
        with suppress(Superseded):
            for group in (*TEACHING, EQUAL):
                if group not in closed:
                    await claim.append(GroupDropped(run=RUN, group=group, reason=DropReason.RUN_ENDED, nonce=claim.nonce))
            if not any(isinstance(event, RunEnded) for event in self._journal()):
                steps = 0 if history.newest is None else history.newest.step
                await claim.append(RunEnded(run=RUN, reason="stopped", steps=steps, nonce=claim.nonce))

    async def _end(self) -> None:
        """All lives leave as they are asked to; then whatever is left of them goes."""
        for life in self._lives:
            life.spare()
        self._wake_all()
        for stopping in self._stopping.values():
            stopping.set()
        tasks = [task for task in self._tasks.values() if not task.done()]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=60.0)
            if left:
                self.outcome.wrong.append(f"{len(left)} lives did not leave when they were asked to")
        for life in self._lives:
            life.kill()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _publish(self, words: str) -> None:
        self.outcome.said.append(f"[{len(self.outcome.calls)}] {words}")

    def _journal(self) -> list[Event]:
        log = self._server.log(journal_stream(RUN))
        records = log.between(len(self._events) + 1, log.tail, ())
        self._events += [decode(each.subject, each.payload, each.headers) for each in records]
        return self._events


def closed_groups(events: list[Event]) -> dict[str, Event]:
    """Each group's first closing."""
    closed: dict[str, Event] = {}
    for event in events:
        if isinstance(event, GroupTrained | GroupDropped):
            closed.setdefault(event.group, event)
        elif isinstance(event, StepsCommitted):
            for group in event.groups:
                closed.setdefault(group, event)
    return closed


@cache
def fed() -> tuple[tuple[Event, Message], ...]:
    """What others say in the run: all groups, sampled by its first weights and judged."""
    events: list[Event] = []
    for group, index in itertools.product((*TEACHING, EQUAL), (0, 1)):
        sample = Sample(
            token_ids=Int32s([3, 4, 5, 6]),
            spans=((2, 2 + NUM_TOKENS),),
            logprobs=Float32s([-1.0] * NUM_TOKENS),
            versions=((0, NUM_TOKENS),),
        )
        ready = samples_ready(group, index, [sample], 0.0 if group == EQUAL else float(index))
        origin = EpisodeOrigin(group=group, task=group, env="sums", index=index, attempt=0)
        events += [
            SegmentSampled(
                run=RUN,
                episode=ready.episode,
                generation=ready.episode,
                shard=0,
                nonce="n",
                start=0,
                token_ids=Int32s([5] * NUM_TOKENS),
                logprobs=sample.logprobs,
                weights_version=0,
            ),
            EpisodeEnded(run=RUN, episode=ready.episode, shard=0, origin=origin, status=EpisodeStatus.COMPLETED),
            ready,
        ]
    return tuple((event, to_message(event)) for event in events)


@cache
def base_settings() -> TrainerSettings:
    return TrainerSettings(store_url="memory://store", device="cpu")


class _FreeDevice:
    """A device that no other process of this node wants."""

    def __init__(self, work_dir: Path, node: str) -> None:
        self.held = False

    async def take(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


@contextmanager
def stage() -> Iterator[Path]:
    """What all orders share; gives their folder. Logs are dropped."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sleeping-")))
        (folder / "model").mkdir()
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / "model" / name).write_text(json.dumps({"model_type": "numbers"}))
        (folder / "model" / "model.safetensors").write_bytes(b"")
        stack.enter_context(threads_inline())
        stack.enter_context(patch.object(seamlessflow.bus.memory.stream, "matches", cache(matches)))
        stack.enter_context(patch.object(seamlessflow_trainer.service, "DeviceLock", _FreeDevice))
        gc.collect()
        gc.freeze()  # torch and its like have a million objects, which would be looked through again and again
        stack.callback(gc.unfreeze)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        stack.callback(structlog.reset_defaults)
        yield folder


@contextmanager
def counted_ids() -> Iterator[None]:
    """Ids that differ and have no order, yet are the same whenever the same order is played."""
    numbers = itertools.count()

    def digest(num_bytes: int) -> bytes:
        return hashlib.blake2b(str(next(numbers)).encode(), digest_size=num_bytes).digest()

    with (
        patch.object(uuid, "uuid4", lambda: uuid.UUID(bytes=digest(16), version=4)),
        patch.object(secrets, "token_hex", lambda num_bytes=16: digest(num_bytes).hex()),
    ):
        yield


def play(plan: Plan, folder: Path, *, is_fenced: bool = True) -> Outcome:
    """One order, on a ``stage``."""
    loop = VirtualTimeLoop()
    loop.set_exception_handler(lambda loop, context: None)  # what a killed process leaves behind
    outcome = Outcome(plan)
    try:
        with counted_ids():
            loop.run_until_complete(_play(outcome, folder, is_fenced))
    except Stuck as wrong:
        outcome.wrong.append(str(wrong))
    finally:
        loop.close()
    return outcome


async def _play(outcome: Outcome, folder: Path, is_fenced: bool) -> None:
    server = MemoryServer() if is_fenced else UnfencedServer()
    await SleepingWorld(outcome, server, folder).play()
