"""Claims on a run's commits, over both buses: one holder at a time, and a holder that knows when it is none any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from seamlessflow.bus.base import Bus, Message, Stored
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.checkpoints.commit_claim import CommitClaim, read_commits
from seamlessflow.contracts import DropReason, GroupDropped, StepsCommitted, TrainerClaimed, TrainerStarted
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import Superseded
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store

RUN = "r"


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    bus: Bus = MemoryBus()
    if request.param == "jetstream":
        bus = await connect(request.getfixturevalue("own_server").url, name="claims")
    for stream in run_streams(RUN):
        await bus.ensure_stream(stream)
    yield bus
    await bus.close()


@pytest.fixture
def journal(bus: Bus, tmp_path: Path) -> Journal:
    return Journal(bus, Store(f"file://{tmp_path}"))


def claim_of(bus: Bus, journal: Journal, who: str = "a") -> CommitClaim:
    return CommitClaim(bus, journal, RUN, f"trainer {who}")


def committed(claim: CommitClaim, step: int) -> StepsCommitted:
    return StepsCommitted(run=RUN, step=step, line=claim.line, checkpoint=f"c{step}", groups=(f"g{step}",), nonce=claim.nonce)


def dropped(claim: CommitClaim, group: str) -> GroupDropped:
    return GroupDropped(run=RUN, group=group, reason=DropReason.STALE, nonce=claim.nonce)


async def test_claims_at_the_same_time_have_lines_of_their_own_and_the_last_one_holds(bus: Bus, journal: Journal):
    """Ten of them; nine are superseded."""
    claims = [claim_of(bus, journal, str(number)) for number in range(10)]
    await asyncio.gather(*(claim.take() for claim in claims))
    last = max(claims, key=lambda claim: claim.line)

    assert sorted(claim.line for claim in claims) == list(range(1, 11))
    for claim in claims:
        if claim is last:
            await claim.check()
        else:
            with pytest.raises(Superseded, match="is not the newest, which is that of line 10"):
                await claim.check()
            assert claim.lost.is_set()


async def test_a_line_counts_on_from_lines_that_began_without_a_claim(bus: Bus, journal: Journal):
    """An earlier release's."""
    await journal.publish(TrainerStarted(run=RUN, line=4, step=0, weights_version=0))
    claim = claim_of(bus, journal)
    await claim.take()

    assert claim.line == 5


async def test_commits_and_drops_beside_each_other_all_get_through(bus: Bus, journal: Journal):
    """A commit moves the fence under a drop that is on its way: it is tried again."""
    claim = claim_of(bus, journal)
    await claim.take()
    drops = [claim.append(dropped(claim, f"d{number}")) for number in range(20)]
    commits = [claim.append(committed(claim, step)) for step in range(1, 6)]
    await asyncio.gather(*drops, *commits)

    history = await read_commits(bus, journal, RUN)
    assert [commit.step for commit in history.named] == [1, 2, 3, 4, 5]
    assert len(await journal.all_on(GroupDropped, RUN)) == 20


@pytest.mark.parametrize("kind", ["commit", "drop"])
async def test_after_a_newer_claim_nothing_of_the_older_one_is_stored(kind: str, bus: Bus, journal: Journal):
    """On the subject of commits and on any other."""
    older, newer = claim_of(bus, journal, "a"), claim_of(bus, journal, "b")
    await older.take()
    await older.append(committed(older, 1))
    await newer.take()

    with pytest.raises(Superseded):
        await older.append(committed(older, 2) if kind == "commit" else dropped(older, "g"))
    assert [commit.step for commit in (await read_commits(bus, journal, RUN)).named] == [1]
    assert await journal.all_on(GroupDropped, RUN) == []
    await newer.append(committed(newer, 2))


async def test_no_trainer_claims_a_run_that_is_being_closed_but_another_scheduler_does(bus: Bus, journal: Journal):
    """The one that leads by then closes the rest."""
    await claim_of(bus, journal, "scheduler a").take(closes=True)

    with pytest.raises(Superseded, match="is being closed") as refused:
        await claim_of(bus, journal).take()
    assert refused.value.is_closing
    await claim_of(bus, journal, "scheduler b").take(closes=True)


class LosesAcknowledgements(MemoryBus):
    """Stores what is published, and then behaves as if it had been refused, as a retry after a long outage is."""

    is_lossy = False

    async def publish(self, message: Message) -> Stored:
        stored = await super().publish(message)
        return await super().publish(message) if self.is_lossy else stored


async def test_a_commit_whose_acknowledgement_was_lost_is_known_for_our_own(tmp_path: Path):
    """It is stored once, and the next one follows it."""
    bus = LosesAcknowledgements()
    for stream in run_streams(RUN):
        await bus.ensure_stream(stream)
    journal = Journal(bus, Store(f"file://{tmp_path}"))
    claim = claim_of(bus, journal)
    await claim.take()
    bus.is_lossy = True
    await claim.append(committed(claim, 1))
    await claim.append(committed(claim, 2))

    assert [commit.step for commit in (await read_commits(bus, journal, RUN)).named] == [1, 2]


async def test_of_two_claims_that_got_the_same_place_only_the_one_in_the_journal_commits(tmp_path: Path):
    """A server that lost its journal's end gives a sequence away twice: the lost claim's commit is stored, and found out."""
    before, after = MemoryBus(), MemoryBus()
    speakers: Sequence[Journal] = [Journal(bus, Store(f"file://{tmp_path}")) for bus in (before, after)]
    for bus in (before, after):
        for stream in run_streams(RUN):
            await bus.ensure_stream(stream)
    lost = claim_of(before, speakers[0])
    await lost.take()
    kept = claim_of(after, speakers[1], "b")
    await kept.take()
    lost._bus, lost._journal = after, speakers[1]  # the same server, after the power came back

    with pytest.raises(Superseded, match="the server lost the end of its journal"):
        await lost.append(committed(lost, 1))
    history = await read_commits(after, speakers[1], RUN)
    assert history.newest is None and [claim.nonce for claim in history.claims] == [kept.nonce]
    assert len(await speakers[1].all_on(TrainerClaimed, RUN)) == 2


async def test_a_claim_that_was_lost_stays_lost_and_tells_how(bus: Bus, journal: Journal):
    """Each later use gives the same answer, also that the run is being closed, until the claim is taken anew."""
    claim, closing = claim_of(bus, journal), claim_of(bus, journal, "scheduler")
    await claim.take()
    await closing.take(closes=True)
    told = []
    for use in (claim.append(dropped(claim, "g")), claim.append(committed(claim, 1)), claim.check()):
        with pytest.raises(Superseded) as refused:
            await use
        told.append((str(refused.value), refused.value.is_closing))

    assert len(set(told)) == 1 and told[0][1]
    assert not claim.is_held and closing.is_held
