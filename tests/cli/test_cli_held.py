"""A run that is held: its reason is on the screen, the command ends, and a person makes it go on."""

import asyncio
import json
import time

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.cli.run_location import Folder
from seamlessflow.cli.run_session import request_resume
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.contracts import ResumeRequested, RunEnded, RunPhase, RunState, StepTaken
from seamlessflow.contracts.routes import RUNS_BUCKET
from seamlessflow.errors import ConfigError
from seamlessflow.store.large_payloads import Store
from tests.cli import test_cli_here
from tests.cli.checkpoints_place import CONFIG, RUN, Place, claimed, command, committed, held, path_of, publish, rolled_back
from tests.cli.test_cli_follow import SECONDS, Desk

checkout = test_cli_here.checkout


@pytest.fixture
def place(nats_binary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Place(Store(f"file://{tmp_path}/store"))


class HeldDesk(Desk):
    """A run in memory, named as its events name it."""

    async def begin(self, *events):
        await publish(self.client, *events)

    def follower(self):
        follower = super().follower()
        follower._run = RUN
        return follower


@pytest.fixture
def desk(tmp_path):
    return HeldDesk(tmp_path)


def step(number, line):
    return StepTaken(run=RUN, step=number, line=line, weights_version=number, groups=(), metrics={"reward": 0.5})


async def test_a_run_that_is_held_is_followed_no_longer(desk):
    """Whether it was held before or is held now."""
    await desk.begin(claimed(1))
    following = asyncio.create_task(desk.follow())
    async with asyncio.timeout(SECONDS):
        await desk.journal.publish(held(1))
        follower = await following

    assert follower.view.held is not None and follower.view.held.reason == "the checkpoint is damaged"
    assert (await desk.follow()).view.held is not None


async def test_a_hold_that_was_answered_is_followed_on(desk):
    """By a request or a rollback; the rollback is a line, and what a late trainer publishes is none."""
    await desk.begin(
        claimed(1),
        committed(1, 1, "a"),
        held(1),
        ResumeRequested(run=RUN, request="q2", checkpoint_step=1),
        claimed(2),
        rolled_back(1, 2, path_of(1)),
        step(2, 1),
        step(2, 2),
        RunEnded(run=RUN, reason="completed", steps=2, nonce="n2"),
    )
    follower = await desk.follow()

    assert follower.view.ended is not None
    lines = desk.screen.getvalue().splitlines()
    assert [line.partition("  reward")[0] for line in lines] == [
        "went back to the checkpoint of step 1: what was trained after it counts no more",
        "step   2/2",
    ]
    assert (desk.folder.path / "metrics.jsonl").read_text().count("\n") == 1


async def requests_of(desk):
    return [event async for _, event in desk.client.events(RUN) if isinstance(event, ResumeRequested)]


async def resume(desk, step=None):
    said = []
    await request_resume(desk.client, RUN, CONFIG, step, lambda line, style: said.append(line))
    return said


async def test_a_rollback_is_requested_of_a_kept_checkpoint(desk):
    """Each request is a new one."""
    await desk.begin(claimed(1), committed(1), committed(2), committed(3))

    assert "go back to step 2" in (await resume(desk, 2))[0]
    await resume(desk, 3)
    first, second = await requests_of(desk)
    assert (first.checkpoint_step, second.checkpoint_step) == (2, 3) and first.request != second.request


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((claimed(1), committed(1), committed(2), committed(3)), "its kept checkpoints are of step 2, 3"),
        (
            (claimed(1), committed(1), committed(4), claimed(2), rolled_back(1, 2, path_of(1))),
            "are of step 1. Nothing was changed",
        ),
        ((claimed(1),), "it has no checkpoint yet"),
        ((claimed(1), committed(4), RunEnded(run=RUN, reason="stopped", steps=4, nonce="n1")), "has ended; it trains no more"),
        ((claimed(1), committed(4), claimed(2).model_copy(update={"closes": True})), "is being ended; it trains no more"),
    ],
    ids=["removed", "rolled back", "none", "ended", "being ended"],
)
async def test_a_checkpoint_that_cannot_be_gone_back_to_is_an_error(desk, events, said):
    """It names those there are, and nothing is published."""
    await desk.begin(*events)

    with pytest.raises(ConfigError, match=said):
        await resume(desk, 1 if "2, 3" in said else 4)
    assert not await requests_of(desk)


async def test_a_run_without_a_journal_has_no_checkpoint(desk):
    """It was asked for, and never began."""
    with pytest.raises(ConfigError, match="it has no checkpoint yet"):
        await resume(desk, 1)
    assert await resume(desk) == []


async def test_a_held_run_is_asked_to_try_again_and_others_are_not(desk):
    """Once for each time that it is held."""
    await desk.begin(claimed(1))
    assert await resume(desk) == []
    await desk.journal.publish(held(1, "the disk is full"))
    assert "the disk is full" in (await resume(desk))[0]
    assert await resume(desk) == []

    assert [request.checkpoint_step for request in await requests_of(desk)] == [None]


def test_status_shows_why_a_run_is_held_though_nothing_serves_it(place):
    """From the journal, whatever the scheduler had come to; and no longer once a person asked it to go on."""
    place.journal(claimed(1), held(1, "damaged [here]"))
    assert "demo held: damaged [here]" in command("status", RUN).words

    async def scheduler_says(client):
        state = RunState(phase=RunPhase.HELD, reason="damaged", requested_at=0.0)
        await (await client.bus.kv(RUNS_BUCKET)).put(RUN, pack_record(state))

    place.do(scheduler_says)
    place.journal(ResumeRequested(run=RUN, request="q"))
    assert "demo suspended: nobody serves it" in command("status", RUN).words


def test_train_ends_with_the_reason_of_a_hold(start, checkout, monkeypatch):
    """Resumed, it asks to try again; held again, it tells why within seconds, ends its services in order, and exits with 1."""
    monkeypatch.chdir(checkout)
    place = Place(Store(Folder(checkout / "runs" / RUN).store_url))
    place.journal(claimed(1), held(1, "the first reason"))
    train = start(checkout, "train", "--resume", RUN, "--slices", "1")
    train.wait_for("and is asked to try again: the first reason")
    folder = checkout / "runs" / RUN
    test_cli_here.wait_for_services(folder)
    address = json.loads((folder / "up.json").read_text())

    async def hold():
        async with Client.open(address["nats_url"], address["store_url"]) as client:
            await publish(client, claimed(2), held(2, "the second reason: do this"))

    asyncio.run(hold())
    since = time.monotonic()
    train.wait_for("run demo is held: the second reason: do this")
    assert time.monotonic() - since < 10
    code, said = train.end()

    assert code == 1, said
    assert "held at step 0, of which 0 are saved" in said
    assert test_cli_here.those_that_said("ended in order", folder) == test_cli_here.LOGS
    assert json.loads((folder / "summary.json").read_text())["reason"] == "not ended"
    assert [request.checkpoint_step for request in place.events(ResumeRequested)] == [None]
    EmbeddedServer(folder / "nats").start().stop()  # nothing of it was left running


def test_train_goes_back_only_to_a_checkpoint_that_is_kept(start, checkout, monkeypatch):
    """Before any service is started."""
    monkeypatch.chdir(checkout)
    place = Place(Store(Folder(checkout / "runs" / RUN).store_url))
    place.journal(claimed(1), committed(1), committed(2))
    code, said = start(checkout, "train", "--resume", RUN, "--checkpoint", "7").end()

    assert code == 2, said
    assert "--checkpoint 7: run demo cannot go back to it; its kept checkpoints are of step 1, 2" in said
    assert not list((checkout / "runs" / RUN).glob("logs/*"))
    assert not place.events(ResumeRequested)
