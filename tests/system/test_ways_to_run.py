"""The other engine, the other policies, and two runs on one fleet: whole runs through all five services and a real server.

Each promises the same accounting; the policies also promise who samples when, and the journal can tell.
"""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from seamlessflow.cli.run_location import reach
from seamlessflow.contracts import DeadLetter, EpisodeEnded, EpisodeStatus, Event, Role, RoleReleased, Service, StepTaken

from .short_runs import HELD_OUT, STEPS, Journal, short_run

pytestmark = [pytest.mark.system, pytest.mark.slow]

GAP_NATS = 1e-4
"""Engine and trainer both compute in float32: what is left between them is the order of additions."""
GAP_OVER_UPDATES_NATS = 0.05
"""A generation in progress keeps its cache when weights change: its later tokens see a past of older weights."""
RUN_SECONDS = 300.0


@pytest.fixture(autouse=True)
def in_the_folder_of_the_runs(tmp_path, monkeypatch):
    """Journals are read from here, as ``seamlessflow ledger`` does."""
    monkeypatch.chdir(tmp_path)


async def test_transformers_own_batching_trains_as_well(train, tmp_path):
    """Its logprobs are those the trainer computes, and its runs account for every token."""
    training = train(short_run(tmp_path, model={"engine": "continuous_batching"}), "continuous", "--slices", "2")
    journal = await _ended_well(training)

    assert journal.num_samplers == 2


async def test_colocated_nobody_samples_while_a_step_is_taken(train, tmp_path):
    """The whole fleet rolls out, all of it stops, one node trains; then all of it rolls out again."""
    training = train(short_run(tmp_path, fleet={"policy": "colocated"}), "colocated", "--slices", "2")
    journal = await _ended_well(training)

    assert journal.tokens_during_steps() == [0] * STEPS
    (trainer,) = journal.holders(Service.TRAINER)
    assert trainer == "local-1"
    assert journal.holders(Service.ROLLOUT_WORKER) == {"local-0", "local-1"}
    assert journal.roles_at_steps("local-0") == [Role.IDLE] * STEPS
    assert journal.roles_at_steps("local-1") == [Role.TRAIN] * STEPS
    assert journal.roles("local-0").count(Role.ROLLOUT) > STEPS
    assert journal.roles("local-1").count(Role.ROLLOUT) > STEPS


async def test_disaggregated_the_trainers_node_never_rolls_out(train, tmp_path):
    """One of two slices trains for the whole run, the other rolls out for the whole run."""
    training = train(short_run(tmp_path, fleet={"policy": "disaggregated"}), "disaggregated", "--slices", "2")
    journal = await _ended_well(training)

    (trainer,) = journal.holders(Service.TRAINER)
    (sampler,) = journal.holders(Service.ROLLOUT_WORKER)
    assert {trainer, sampler} == {"local-0", "local-1"}
    assert journal.roles_at_steps(trainer) == [Role.TRAIN] * STEPS
    assert journal.roles_at_steps(sampler) == [Role.ROLLOUT] * STEPS
    told = journal.roles(trainer)
    assert Role.ROLLOUT not in told[told.index(Role.TRAIN) :]
    assert journal.num_samplers == 1


async def test_one_fleet_does_one_run_after_the_other(up, train, tmp_path):
    """The second run finds every service free, learns from weights of its own, and leaves the first one's sums alone."""
    config = short_run(tmp_path)
    first = await _ended_well(train(config, "first", "--nats", "runs/up"))
    second = await _ended_well(train(config, "second", "--nats", "runs/up", "--seed", "2"))

    assert {event.run for event in second.events} == {"second"}
    assert [step.weights_version for step in second.all(StepTaken)] == list(range(1, STEPS + 1))
    assert _facts(await Journal.of("first")) == _facts(first)
    await _until_all_are_free("second")
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0


def _facts(journal: Journal) -> list[Event]:
    """All but that a device was let go of, which may be said when the run is over."""
    return [event for event in journal.events if not isinstance(event, RoleReleased)]


async def _until_all_are_free(run: str) -> None:
    """No node belongs to a run any more."""
    async with reach(run, None, None) as client, asyncio.timeout(30):
        while any(lease is not None and lease.run is not None for _, lease in await client.nodes()):
            await asyncio.sleep(0.2)


async def _ended_well(training) -> Journal:
    """Wait for a run's end; whatever the way, this much is promised. Its journal."""
    summary = training.finish(RUN_SECONDS)
    journal = await Journal.of(training.folder.name)
    assert (summary["reason"], summary["steps"]) == ("completed", STEPS)
    assert [step.step for step in journal.all(StepTaken)] == list(range(1, STEPS + 1))
    assert summary["evaluation"]["after"]["num_episodes"] == HELD_OUT

    ledger = journal.ledger
    assert ledger.balanced
    assert (ledger.episodes.in_flight, ledger.tokens.in_flight) == (0, 0)
    assert ledger.tokens.trained > 0
    assert json.loads(json.dumps(ledger.to_json())) == summary["ledger"]
    assert journal.all(DeadLetter) == []
    ends = {end.status for end in journal.all(EpisodeEnded)}
    assert ends <= {EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED}
    first, *later = journal.logprob_gaps
    assert first < GAP_NATS  # of the only weights there were
    assert all(gap < GAP_OVER_UPDATES_NATS for gap in later), later
    return journal
