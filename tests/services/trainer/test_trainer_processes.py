"""Two real trainer processes on a real nats-server: one stands still (SIGSTOP), is succeeded, and wakes (SIGCONT).

where the lease is when it wakes   what the older process does
another node's                     hands back what it holds, and stays for its next lease
still its own node's               ends with an error that names the reason, and commits nothing
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.codec import pack_record
from seamlessflow.contracts import (
    BatchReady,
    Event,
    GroupTrained,
    Lease,
    Role,
    RunStopRequested,
    StepsCommitted,
    StepTaken,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
    WeightsPublished,
)
from seamlessflow.contracts.routes import BUCKETS, CONTROL_STREAM, HINT_POKE, LEASES_BUCKET
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow_trainer.steps.checkpoints import BARRIER_TEXT
from tests.services.trainer.trainer_accounts import feed
from tests.services.trainer.trainer_world import NODE, RUN, World, run_document

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]
EARLIER = "108c5d6"
"""The last commit of a release that knows no claims."""
GROUPS = [f"g{n}" for n in range(6)]


class RealWorld(World):
    """The world on a real server: a delivery that is neither acknowledged nor kept alive comes again after 2 s."""

    ack_wait_seconds = 2.0

    async def give(self, node: str, role: Role, *, trainer: bool) -> None:
        self.epoch += 1
        lease = Lease(run=RUN, role=role, epoch=self.epoch, trainer=trainer)
        await (await self.bus.kv(LEASES_BUCKET)).put(node, pack_record(lease))
        await self.bus.hint(HINT_POKE.format(node=node), b"")


@pytest.fixture
async def world(own_server: EmbeddedServer, tmp_path: Path, tiny_llama: Path) -> AsyncIterator[RealWorld]:
    """Three steps, each committed, of two groups each."""
    bus = await connect(own_server.url, name="test")
    for bucket in BUCKETS:
        await bus.kv(bucket)
    made = RealWorld(tmp_path, run_document(tiny_llama, steps=3, every_steps=1, max_staleness=9), bus)
    await made.open()
    yield made
    await bus.close()


@contextmanager
def trainer_process(
    world: World, server: EmbeddedServer, node: str, name: str, checkout: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """``python -m seamlessflow_trainer``; killed at the end of the block, if it is there still. Its log is <name>.log."""
    environment = {
        **os.environ,
        "SEAMLESSFLOW_NATS_URL": server.url,
        "SEAMLESSFLOW_STORE_URL": world.store.url,
        "SEAMLESSFLOW_NODE": node,
        "SEAMLESSFLOW_WORK_DIR": str(world.folder / f"work-{name}"),
        "SEAMLESSFLOW_MODEL_CACHE": str(world.folder),
        "SEAMLESSFLOW_DEVICE": "cpu",
        "PYTHONPATH": f"{checkout}:{checkout / 'shared'}",
    }
    is_package = (checkout / "services" / "trainer" / "seamlessflow_trainer").is_dir()
    if is_package:
        environment["PYTHONPATH"] += f":{checkout / 'services' / 'trainer'}"
    module = "seamlessflow_trainer" if is_package else "services.trainer"  # as releases before that had it
    with (world.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", module], env=environment, cwd=checkout, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def exit_code(process: subprocess.Popen[bytes], seconds: float = 30.0) -> int | None:
    """None: it is there still."""
    async with asyncio.timeout(seconds):
        while process.poll() is None:
            await asyncio.sleep(0.05)
    return process.returncode


async def check_commits(world: World, groups: list[str], *, num_steps: int) -> None:
    """Each group is in one commit, steps follow one another, and GroupTrained is what the commits account for."""
    history = CommitHistory.of(await world.heard(Event))
    committed = Counter(group for commit in history.named for group in commit.groups)
    assert committed == Counter(groups)
    assert [commit.step for commit in history.named] == list(range(1, num_steps + 1))
    assert sorted(t.group for t in await world.heard(GroupTrained)) == sorted(groups)


@pytest.mark.parametrize("stops_at", [TrainerStarted, BatchReady, StepTaken, StepsCommitted], ids=lambda kind: kind.__name__)
async def test_a_trainer_that_stood_still_undoes_nothing_of_its_successor(
    stops_at: type[Event], world: RealWorld, own_server: EmbeddedServer
) -> None:
    """Whenever it stood still, each group is trained once and in one commit, and the run goes to its last step."""
    with trainer_process(world, own_server, "a", "a") as a, trainer_process(world, own_server, "b", "b") as b:
        await world.give("a", Role.TRAIN, trainer=True)
        feeder = asyncio.create_task(feed(world, GROUPS[:2]))
        await world.hears(stops_at, seconds=60)
        a.send_signal(signal.SIGSTOP)
        await world.give("a", Role.IDLE, trainer=False)
        await world.give("b", Role.TRAIN, trainer=True)
        await world.hears(TrainerStarted, count=2, seconds=60)
        await feeder
        a.send_signal(signal.SIGCONT)
        await feed(world, GROUPS[2:])
        async with asyncio.timeout(60):
            while (newest := CommitHistory.of(await world.heard(Event)).newest) is None or newest.step < 3:
                await asyncio.sleep(0.1)
        assert a.poll() is None and b.poll() is None

    await check_commits(world, GROUPS, num_steps=3)


async def test_a_trainer_whose_node_is_still_named_ends_with_the_reason(world: RealWorld, own_server: EmbeddedServer) -> None:
    """Another process of its name took the run while it stood still: two would undo each other, so the older one exits."""
    with trainer_process(world, own_server, NODE, "older") as older:
        await world.give(NODE, Role.TRAIN, trainer=True)
        await world.hears(TrainerStarted, seconds=60)
        older.send_signal(signal.SIGSTOP)
        with trainer_process(world, own_server, NODE, "younger") as younger:
            await world.hears(TrainerStarted, count=2, seconds=60)
            older.send_signal(signal.SIGCONT)
            code = await exit_code(older)
            await feed(world, GROUPS[:2])
            committed = await world.hears(StepsCommitted)
            assert younger.poll() is None

    assert code == 1 and committed.line == 2
    assert f"claim of line 1 on run {RUN} is not the newest" in (world.folder / "older.log").read_text()
    assert [claim.line for claim in await world.heard(TrainerClaimed)] == [1, 2]


@pytest.mark.slow
async def test_a_trainer_of_the_release_before_claims_stops_with_a_sentence(
    world: RealWorld, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Run from git on what this release wrote: it ends before it publishes weights, a stop or an end of training."""
    earlier = tmp_path / "earlier"
    archive = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"a checkout without the history of {EARLIER}")
    earlier.mkdir()
    subprocess.run(["tar", "-x", "-C", str(earlier)], input=archive.stdout, check=True)
    with trainer_process(world, own_server, "a", "a"):
        await world.give("a", Role.TRAIN, trainer=True)
        await feed(world, GROUPS[:2])
        await world.hears(StepsCommitted, seconds=60)
    before = await world.heard(Event)
    with trainer_process(world, own_server, "old", "old", earlier) as old:
        await world.give("old", Role.ROLLOUT, trainer=True)
        code = await exit_code(old, 60)

    assert code == 1 and BARRIER_TEXT in (world.folder / "old.log").read_text()
    added = (await world.heard(Event))[len(before) :]
    assert not [event for event in added if isinstance(event, WeightsPublished | TrainingEnded | TrainerStarted)]
    assert await world.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=RUN)) is None
