"""A trainer that was presumed dead while it wrote a checkpoint, and wakes after its successor committed the same step.

    node a   takes step 1 on g0, g1 ─▶ writes its checkpoint … cut off from the server ……………………▶ the write ends, or is given up
    node b                                          claims ─▶ takes step 1 on two others ─▶ commits ─▶ killed
    node b                                                                               again: goes on from its own commit

Whatever a does when it wakes: the committed groups are in the surviving weights, its own are open and come again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
import torch

from seamlessflow.bus.base import Message, Stored
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.codec import pack_record
from seamlessflow.contracts import (
    Event,
    GroupDropped,
    GroupTrained,
    Lease,
    Role,
    RunHeld,
    Service,
    StepsCommitted,
    StepTaken,
    TrainerStarted,
)
from seamlessflow.contracts.routes import HINT_POKE, LEASES_BUCKET
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import Context, make_context
from seamlessflow_trainer import incarnations
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trainer.learner.factory import build_learner
from seamlessflow_trainer.service import Trainer
from seamlessflow_trainer.steps import checkpoints
from seamlessflow_trainer.steps.checkpoints import CheckpointStore
from tests.services.trainer.trainer_accounts import feed
from tests.services.trainer.trainer_world import ACK_WAIT_SECONDS, RUN, DyingBus, World

MakeWorld = Callable[..., Awaitable[World]]


class CutBus(DyingBus):
    """A connection that can be cut: whatever asks the server waits until it is back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_up = asyncio.Event()
        self.is_up.set()

    async def publish(self, message: Message) -> Stored:
        await self.is_up.wait()
        return await super().publish(message)

    async def last(self, stream: str, subject: str):
        await self.is_up.wait()
        return await super().last(stream, subject)

    async def first(self, stream: str, subject: str):
        await self.is_up.wait()
        return await super().first(stream, subject)

    async def kv(self, bucket: str):
        await self.is_up.wait()
        return await super().kv(bucket)


class Life:
    """One trainer process of a node."""

    def __init__(self, world: World, node: str) -> None:
        self.bus = CutBus(world.server)
        settings = TrainerSettings(
            store_url=world.store.url,
            node=node,
            work_dir=world.folder / f"work-{node}",
            model_cache=world.folder,
            device="cpu",
        )
        self.context: Context = make_context(Service.TRAINER, settings, self.bus, capabilities=("train",))
        self.task = asyncio.create_task(Trainer(self.context, settings, build=build_learner).run())

    async def kill(self) -> None:
        """As kill -9: its connection is gone, and nothing is handed back."""
        await self.bus.abort()
        self.task.cancel()
        with suppress(BaseException):
            await self.task

    async def end(self) -> None:
        self.context.stopping.set()
        await asyncio.wait([self.task], timeout=15)
        await self.kill()


async def give(world: World, node: str, role: Role, *, trainer: bool) -> None:
    world.epoch += 1
    lease = Lease(run=RUN, role=role, epoch=world.epoch, trainer=trainer)
    await (await world.bus.kv(LEASES_BUCKET)).put(node, pack_record(lease))
    await world.bus.hint(HINT_POKE.format(node=node), b"")


class SlowWrite:
    """The first file of the first checkpoint stops in the middle until it is let go, and is then given up or written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gives_up: bool) -> None:
        self.inside, self.let_go = threading.Event(), threading.Event()
        self._gives_up, self._is_first, self._real = gives_up, True, checkpoints._until
        monkeypatch.setattr(checkpoints, "_until", self._until)

    def _until(self, should_stop: Callable[[], bool], chunks: Iterator[bytes]) -> Iterator[bytes]:
        if not self._is_first:
            yield from self._real(should_stop, chunks)
            return
        self._is_first = False
        for number, chunk in enumerate(chunks):
            if number == 1:
                self.inside.set()
                self.let_go.wait(60)
                if self._gives_up:
                    raise Unavailable("the checkpoint was given up on request; nothing of it counts")
            yield chunk


@pytest.mark.parametrize("gives_up", [False, True], ids=["the write ends", "the write is given up"])
async def test_a_late_write_neither_replaces_nor_spoils_what_was_committed(
    gives_up: bool, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line 3 goes on from the commit of line 2, with its very weights, and trains the groups that are still open."""
    monkeypatch.setattr(incarnations, "LOOK_SECONDS", 0.05)
    slow = SlowWrite(monkeypatch, gives_up=gives_up)
    world = await make_world(steps=9, max_staleness=9, every_steps=1)
    a = Life(world, "a")
    await give(world, "a", Role.TRAIN, trainer=True)
    await feed(world, ["g0", "g1"])
    await world.hears(StepTaken)
    await asyncio.to_thread(slow.inside.wait, 20)
    a.bus.is_up.clear()
    await give(world, "a", Role.IDLE, trainer=False)
    b = Life(world, "b")
    await give(world, "b", Role.TRAIN, trainer=True)
    await world.hears(TrainerStarted, count=2)
    await feed(world, ["g2", "g3"])
    committed = await world.hears(StepsCommitted)
    await b.kill()
    store = CheckpointStore(world.store, RUN, world.folder / "look")
    before = store.read(committed.checkpoint)[1].weights

    slow.let_go.set()
    await asyncio.sleep(0.3)
    a.bus.is_up.set()
    await asyncio.sleep(2 * ACK_WAIT_SECONDS)
    b = Life(world, "b")
    await give(world, "b", Role.TRAIN, trainer=True)
    started = await world.hears(TrainerStarted, count=3)
    again = await world.hears(StepsCommitted, count=2)
    await a.end()
    await b.end()

    after = store.read(committed.checkpoint)[1].weights
    groups = {"g0", "g1", "g2", "g3"}
    assert (committed.line, committed.step) == (2, 1)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert (started.line, started.step) == (3, 1)
    assert (again.line, again.step, set(again.groups)) == (3, 2, groups - set(committed.groups))
    assert CommitHistory.of(await world.heard(Event)).newest_account == again.account
    trained = sorted((t.group, t.step) for t in await world.heard(GroupTrained))
    assert trained == sorted([*((g, 1) for g in committed.groups), *((g, 2) for g in again.groups)])
    assert await world.heard(GroupDropped) == [] and await world.heard(RunHeld) == []


async def test_a_healthy_trainer_commits_nothing_while_its_successor_restores(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim comes before anything is read, so what the older one commits in that minute is refused, and its groups come
    again."""
    monkeypatch.setattr(incarnations, "LOOK_SECONDS", 60.0)  # the older one learns it by its refused commit alone
    slow = SlowWrite(monkeypatch, gives_up=False)
    world = await make_world(steps=9, max_staleness=9, every_steps=1)
    a = Life(world, "a")
    await give(world, "a", Role.TRAIN, trainer=True)
    await feed(world, ["g0", "g1"])
    await world.hears(StepTaken)
    await asyncio.to_thread(slow.inside.wait, 20)
    await give(world, "a", Role.IDLE, trainer=False)
    b = Life(world, "b")
    await give(world, "b", Role.TRAIN, trainer=True)
    await world.hears(TrainerStarted, count=2)
    slow.let_go.set()
    committed = await world.hears(StepsCommitted)
    await a.end()
    await b.end()

    assert (committed.line, committed.step, sorted(committed.groups)) == (2, 1, ["g0", "g1"])
    assert len(await world.heard(StepsCommitted)) == 1
    assert sorted(t.group for t in await world.heard(GroupTrained)) == ["g0", "g1"]
