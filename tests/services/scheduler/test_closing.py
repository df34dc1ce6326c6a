"""Closing a run: a claim first, so that no trainer commits behind it; and runs that are held, or went back to a checkpoint.

the trainer's commit came          what the scheduler does
before the claim                   publishes its groups as trained, and drops the others
after the claim                    nothing: the server refuses the commit
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import (
    EpisodeOpened,
    EpisodeTokens,
    Event,
    GroupAdmitted,
    GroupDropped,
    GroupTrained,
    ResumeRequested,
    RolledBack,
    RunEnded,
    RunHeld,
    RunPhase,
    RunStopRequested,
    StepsCommitted,
    StepTaken,
    TrainedGroup,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
)
from seamlessflow.errors import Superseded, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow_scheduler.admission.decisions import Observation, admission_bound, next_events
from seamlessflow_scheduler.admission.run_state import RunProgress
from seamlessflow_scheduler.run import ScheduledRun
from tests.services.scheduler import scheduler_bench
from tests.services.scheduler.rhythm_builders import kinds, told
from tests.services.scheduler.scheduler_bench import Bench, until
from tests.services.scheduler.scheduler_world import RUN, config, tasks


class Rival:
    """A trainer with a claim, which commits when it is told to."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.claim = bench, CommitClaim(bench.bus, bench.journal, RUN, "trainer rival")

    async def begins(self) -> None:
        await self.claim.take()
        line, nonce = self.claim.line, self.claim.nonce
        await self.claim.append(TrainerStarted(run=RUN, line=line, step=0, weights_version=0, nonce=nonce))

    async def commits(self, step: int, *groups: str) -> None:
        await self.claim.append(committed(step, *groups, line=self.claim.line, nonce=self.claim.nonce))


def committed(step: int, *groups: str, line: int = 1, nonce: str = "n1") -> StepsCommitted:
    account = tuple(TrainedGroup(group=group, step=step, episodes=()) for group in groups)
    checkpoint = f"{RUN}/checkpoints/{step}"
    return StepsCommitted(run=RUN, step=step, line=line, checkpoint=checkpoint, groups=groups, nonce=nonce, account=account)


def claimed(line: int, nonce: str, *, closes: bool = False) -> TrainerClaimed:
    return TrainerClaimed(run=RUN, line=line, nonce=nonce, by="test", closes=closes)


async def begun(bench: Bench, **settings: Any) -> Rival:
    """A run with two open groups, and a trainer that began its line."""
    await bench.start(**settings)
    await bench.announce()
    await bench.request()
    rival = Rival(bench)
    await rival.begins()
    await bench.submit(train=2)
    await until(lambda: count(bench, EpisodeOpened, 4))
    return rival


async def count(bench: Bench, kind: type[Event], at_least: int) -> bool:
    return len(await bench.events(RUN, kind)) >= at_least


async def test_a_commit_that_came_before_the_claim_is_published_and_counts(bench: Bench):
    """The trainer died between its commit and GroupTrained; the run is stopped without it."""
    rival = await begun(bench, trainer_away_seconds=0.1)
    await rival.commits(1, "g-t0")
    await bench.vanish("gpu", "trainer")
    await bench.journal.publish(RunStopRequested(run=RUN))

    ended = await bench.until_ended()
    assert (ended.reason, ended.steps) == ("stopped", 1)
    assert [each.group for each in await bench.events(RUN, GroupTrained)] == ["g-t0"]
    assert [each.group for each in await bench.events(RUN, GroupDropped)] == ["g-t1"]
    with pytest.raises(Superseded, match="is not the newest"):
        await rival.commits(2, "g-t1")


async def test_after_the_claim_no_trainer_commits_or_claims(bench: Bench):
    """Whatever wakes later: its append is refused, and a new trainer stays out."""
    rival = await begun(bench, trainer_away_seconds=0.1)
    await bench.vanish("gpu", "trainer")
    await bench.journal.publish(RunStopRequested(run=RUN))
    await bench.until_ended()

    with pytest.raises(Superseded) as refused:
        await rival.commits(1, "g-t0", "g-t1")
    assert refused.value.is_closing
    with pytest.raises(Superseded, match="is being closed by scheduler s1"):
        await Rival(bench).begins()
    assert await bench.events(RUN, StepsCommitted) == []
    assert CommitHistory.of(await bench.events(RUN)).is_closing


async def test_every_drop_and_the_end_name_the_claim_of_the_closing(bench: Bench):
    """So whoever folds the journal can tell them from a late writer's."""
    await begun(bench, trainer_away_seconds=0.1)
    await bench.vanish("gpu", "trainer")
    await bench.journal.publish(RunStopRequested(run=RUN))
    await bench.until_ended()

    (closing,) = [each for each in await bench.events(RUN, TrainerClaimed) if each.closes]
    assert {each.nonce for each in await bench.events(RUN, GroupDropped)} == {closing.nonce}
    assert [each.nonce for each in await bench.events(RUN, RunEnded)] == [closing.nonce]


async def test_a_scheduler_that_dies_in_a_closing_is_followed_by_one_that_closes_the_rest(bench: Bench):
    """Also where the trainer is back by then: a closing is for good."""
    rival = await begun(bench, trainer_away_seconds=0.1)
    closing = CommitClaim(bench.bus, bench.journal, RUN, "scheduler dead")
    await bench.kill()
    await bench.journal.publish(RunStopRequested(run=RUN))
    await closing.take(closes=True)
    await bench.start("s2", trainer_away_seconds=60.0)

    assert (await bench.until_ended()).reason == "stopped"
    assert sorted(each.group for each in await bench.events(RUN, GroupDropped)) == ["g-t0", "g-t1"]
    with pytest.raises(Superseded):
        await rival.commits(1, "g-t0")


async def test_a_late_end_of_a_trainer_that_lost_its_claim_ends_nothing(bench: Bench):
    """An earlier release compares nothing: what it publishes after a claim is passed over."""
    await begun(bench)
    await bench.journal.publish(TrainingEnded(run=RUN, step=0, weights_version=0))
    await bench.journal.publish(GroupDropped(run=RUN, group="g-t0", reason="failed"))
    await bench.journal.publish(TrainerStarted(run=RUN, line=9, step=7, weights_version=3))

    async def seen() -> bool:
        return await bench.bus.pending(f"QSCHEDULER_{RUN}", "scheduler") == 0

    await until(seen)
    assert await bench.events(RUN, RunEnded) == []
    progress = RunProgress(RUN, config())
    for event in await bench.events(RUN):
        progress.apply(event)
    assert progress.training_ended is None and set(progress.groups) == {"g-t0", "g-t1"} and progress.steps.step == 0


async def test_a_held_run_keeps_no_node_and_says_why_until_a_person_resumes_it(bench: Bench):
    """Leases are released, nothing is admitted, queues stay; a new scheduler knows it as well."""
    rival = await begun(bench)
    await until(lambda: leased(bench, RUN))
    await rival.claim.append(RunHeld(run=RUN, reason="the checkpoint is damaged", nonce=rival.claim.nonce))
    await until(lambda: leased(bench, None))
    await bench.kill()
    await bench.start("s2")

    async def is_held() -> bool:
        state = await bench.state()
        return state.phase is RunPhase.HELD and state.reason == "the checkpoint is damaged"

    await until(is_held)
    assert await leased(bench, None)
    await bench.journal.publish(ResumeRequested(run=RUN, request="q1"))
    await until(lambda: leased(bench, RUN))

    async def goes_on() -> bool:
        return (await bench.state()).phase is RunPhase.RUNNING

    await until(goes_on)


async def leased(bench: Bench, run: str | None) -> bool:
    lease = await bench.lease("gpu")
    return lease is not None and lease.run == run


async def test_a_held_run_that_is_stopped_ends(bench: Bench):
    """No trainer is waited for."""
    rival = await begun(bench)
    await rival.claim.append(RunHeld(run=RUN, reason="the checkpoint is damaged", nonce=rival.claim.nonce))
    await bench.journal.publish(RunStopRequested(run=RUN))

    assert (await bench.until_ended()).reason == "stopped"
    assert len(await bench.events(RUN, GroupDropped)) == 2


def test_nothing_is_admitted_while_a_run_is_held():
    """And all of it once it goes on."""
    progress = RunProgress(RUN, config())
    told(progress, claimed(1, "n1"), RunHeld(run=RUN, reason="damaged", nonce="n1"))

    assert told(progress, *tasks("t", 2)) == []
    published = told(progress, ResumeRequested(run=RUN, request="q1"))
    assert kinds(published).count("GroupAdmitted") == 2


def test_a_rollback_makes_room_for_what_it_took_back():
    """Its groups count as dropped: else nothing could be admitted until the step has come back to where it was."""
    progress = RunProgress(RUN, config())
    published = told(
        progress, *tasks("t", 30), claimed(1, "n1"), TrainerStarted(run=RUN, line=1, step=0, weights_version=0, nonce="n1")
    )
    names = [event.group for event in published if isinstance(event, GroupAdmitted)]
    for step in (1, 2):
        groups = tuple(names[2 * step - 2 : 2 * step])
        taken = StepTaken(run=RUN, step=step, line=1, weights_version=step, groups=groups, metrics={})
        published = told(progress, taken, committed(step, *groups))
        names += [event.group for event in published if isinstance(event, GroupAdmitted)]
    back = RolledBack(run=RUN, step=1, line=2, nonce="n2", checkpoint=f"{RUN}/checkpoints/1", request="q1")
    started = TrainerStarted(run=RUN, line=2, step=1, weights_version=3, nonce="n2")
    told(progress, claimed(2, "n2"), back, started)

    assert (progress.dropped, progress.steps.step, progress.committed_step) == (2, 1, 1)
    assert progress.admitted - progress.dropped <= admission_bound(progress)
    assert progress.potential >= config().algorithm.groups_per_step
    assert progress.failures.dropped.total() == 0


def test_an_event_that_comes_again_after_younger_ones_changes_nothing():
    """A queue delivers again what was not acknowledged: an old claim is not the newest by that, and nothing is held twice."""
    progress = RunProgress(RUN, config())
    history = [
        claimed(1, "n1"),
        RunHeld(run=RUN, reason="damaged", nonce="n1"),
        ResumeRequested(run=RUN, request="q1"),
        claimed(2, "n2"),
    ]
    told(progress, *tasks("t", 2), *history)
    told(progress, *history[:2], committed(1, "g-t0", nonce="n2"))

    assert progress.history.claim.nonce == "n2" and not progress.is_held
    assert set(progress.groups) == {"g-t1"}


def test_a_stop_does_not_wait_for_a_trainer_that_cannot_begin():
    """It claimed the run, and waits for a store that is away: as good as no trainer, once that takes too long."""
    progress = RunProgress(RUN, config())
    started = TrainerStarted(run=RUN, line=1, step=0, weights_version=0, nonce="n1")
    told(progress, claimed(1, "n1"), started, claimed(2, "n2"), RunStopRequested(run=RUN))

    assert progress.is_joining
    assert next_events(progress) == []
    assert kinds(next_events(progress, Observation(trainer_gone=True))) == ["RunEnded"]


class LosesReads(MemoryBus):
    """Reads of claims and commits fail so many times, as with a store that is away."""

    failures = 0

    async def read(self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False):
        if LosesReads.failures and any(each.endswith("training.commits") for each in filters) and len(filters) < 9:
            LosesReads.failures -= 1
            raise Unavailable("the store is away")
        async for record in super().read(stream, filters=filters, start_seq=start_seq, follow=follow):
            yield record


async def test_a_closing_that_fails_halfway_goes_on_under_the_same_claim(bench: Bench, monkeypatch):
    """A store that is away for a while costs time, and no further claims."""
    monkeypatch.setattr(scheduler_bench, "MemoryBus", LosesReads)
    LosesReads.failures = 0
    await begun(bench, trainer_away_seconds=0.1)
    LosesReads.failures = 5
    await bench.vanish("gpu", "trainer")
    await bench.journal.publish(RunStopRequested(run=RUN))

    assert (await bench.until_ended()).reason == "stopped"
    assert LosesReads.failures == 0
    assert len([each for each in await bench.events(RUN, TrainerClaimed) if each.closes]) == 1


async def test_a_commit_that_cannot_be_read_keeps_no_run_from_its_end(bench: Bench, tmp_path):
    """Its account is gone from the store: whoever reads the journal passes over it, and its group is dropped with the run."""
    rival = await begun(bench, trainer_away_seconds=0.1)
    episodes = tuple(EpisodeTokens(episode=f"e{number}-{'x' * 60}", trained=1) for number in range(2000))
    large = committed(1, "g-t0", line=rival.claim.line, nonce=rival.claim.nonce)
    await rival.claim.append(large.model_copy(update={"account": (TrainedGroup(group="g-t0", step=1, episodes=episodes),)}))
    Store(bench.store_url).remove_folder(f"{RUN}/blobs")
    await bench.vanish("gpu", "trainer")
    await bench.journal.publish(RunStopRequested(run=RUN))

    assert (await bench.until_ended()).reason == "stopped"
    assert len([each for each in await bench.events(RUN, TrainerClaimed) if each.closes]) == 1


async def test_a_run_that_no_trainer_ever_began_is_claimed_before_it_ends(bench: Bench):
    """One that starts at that very moment stays out."""
    await bench.start()
    await bench.announce()
    await bench.request()
    await bench.journal.publish(RunStopRequested(run=RUN))
    await bench.until_ended()

    (closing,) = await bench.events(RUN, TrainerClaimed)
    assert (closing.closes, closing.line) == (True, 1)
    with pytest.raises(Superseded, match="is being closed"):
        await Rival(bench).begins()


async def test_a_trainer_that_cannot_go_on_is_closed_behind_like_any_other(bench: Bench):
    """Its failure is how the run ends."""
    rival = await begun(bench)
    nonce = rival.claim.nonce
    await rival.claim.append(TrainingEnded(run=RUN, step=0, weights_version=0, failure="trainer: no model", nonce=nonce))

    ended = await bench.until_ended()
    assert (ended.reason, ended.steps) == ("trainer: no model", 0)
    assert ended.nonce == (await bench.events(RUN, TrainerClaimed))[-1].nonce != nonce


async def test_a_scheduler_that_may_not_lead_any_more_closes_no_run(bench: Bench):
    """It stood still, and judged the trainer by a clock that went on: another one may lead by now."""
    await begun(bench)
    scheduled_run = ScheduledRun(bench.running[0][2], RUN, config(), lambda: None, may_lead=lambda: False)
    await scheduled_run.fold()
    scheduled_run.progress.apply(RunStopRequested(run=RUN))
    scheduled_run.seen = Observation(trainer_gone=True)

    with pytest.raises(Unavailable, match="another scheduler may lead"):
        await scheduled_run._publish_slice()
    assert not [each for each in await bench.events(RUN, TrainerClaimed) if each.closes]
