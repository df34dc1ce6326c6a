"""The time a run was suspended, found in its journal, and the figures of a resumed run that leave it out.

R runner, W worker, T trainer; the digit is the process, . a silent second:

    R1 W1 ........ R2 W2      suspended: nobody is seen on both sides
    R1 W1 ........ R1 W1      not: they waited
    R1 W1 T1 ..... R1 W2 T2   not: the runner lived on while the others died
    R1 ... W1 ... T1          not: they are seen for the first time, one after the other
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import (
    EpisodeStarted,
    GenerationClaimed,
    GroupAdmitted,
    RunEnded,
    RunStarted,
    StepTaken,
    TrainerStarted,
)
from seamlessflow.reports.downtime import MIN_SECONDS, Lives, seconds_within
from seamlessflow.reports.ledger import LedgerFold
from seamlessflow.reports.run_view import RunView
from seamlessflow.reports.summary import phase_seconds, summarize
from tests.domain.lanes_builders import segment

CONFIG = parse_run_config(
    {"model": {"name": "m"}, "agents": [{"env": "a", "entrypoint": "m:f"}], "algorithm": {"steps": 9, "groups_per_step": 1}}
)


def sign(of):
    """An event that says who is there."""
    kind, number = of[0], of[1:]
    if kind == "R":
        return EpisodeStarted(run="r", episode="e", runner=f"runner-{number}")
    if kind == "T":
        return TrainerStarted(run="r", line=int(number), step=0, weights_version=0)
    return GenerationClaimed(run="r", episode="e", generation="g", shard=0, worker=f"worker-{number}", nonce="n", start=0)


def suspensions(*timed):
    lives = Lives()
    for time, of in timed:
        lives.add(sign(of), float(time))
    return lives.suspensions()


def test_a_silence_that_nobody_lived_through_is_a_suspension():
    """Everybody after it is new."""
    assert suspensions((0, "R1"), (1, "W1"), (9, "R2"), (10, "W2"), (11, "R2")) == [(1.0, 9.0)]


def test_a_segment_that_claims_says_who_is_there():
    """As a claim does; other segments do not."""
    lives = Lives()
    for time, worker in ((0.0, "old"), (9.0, "new"), (10.0, None), (90.0, "new")):
        lives.add(segment("g", worker=worker), time)

    assert lives.suspensions() == [(0.0, 9.0)]


def test_a_silence_in_which_everybody_waits_is_none():
    """For tasks, say, for an hour."""
    assert suspensions((0, "R1"), (1, "W1"), (3600, "R1"), (3601, "W1")) == []


def test_a_death_is_none_even_of_all_but_one():
    """The runner is seen on both sides; a run's first hour without a trainer is none either."""
    assert suspensions((0, "R1"), (1, "W1"), (2, "T1"), (90, "T2"), (91, "W2"), (92, "R1"), (93, "W2")) == []


def test_a_slow_start_is_none():
    """Who comes later takes nobody's place, after a suspension neither."""
    slow = suspensions((0, "R1"), (20, "W1"), (40, "T1"), (1000, "R2"), (1020, "W2"), (1040, "T2"))

    assert slow == [(40.0, 1000.0)]


def test_the_longest_silence_between_old_and_new_is_it():
    """Words of others, said while all was ended and started, are on both sides."""
    lives = Lives()
    ended = RunStarted(run="r", document={})
    for time, event in ((0, sign("R1")), (5, ended), (60, ended), (64, sign("R2"))):
        lives.add(event, float(time))

    assert lives.suspensions() == [(5.0, 60.0)]


COMMANDS = st.lists(
    st.tuples(st.floats(MIN_SECONDS * 2, 1e5), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9)), min_size=1
)


@given(COMMANDS)
def test_all_commands_together_last_what_each_lasted(commands):
    """However many there were, and however long nobody served the run between them."""
    view, now, running = RunView(), 1000.0, 0.0
    view.apply(RunStarted(run="r", document={}), now)
    for number, (suspended, waits) in enumerate(commands, 1):
        for seconds in waits:
            now, running = now + seconds, running + seconds
            view.apply(sign(f"R{number}"), now)
        now += suspended
    found = sum(phase_seconds(view).values())

    assert len(view.lives.suspensions()) == len(commands) - 1
    assert found == pytest.approx(running - sum(waits[0] for _, waits in commands[1:]), abs=0.01)


def test_the_summary_of_a_resumed_run_leaves_the_suspension_out_of_phases_total_and_rate():
    """Ten seconds before training, ten of training, an hour suspended, ten more of training."""
    view = RunView()
    step = StepTaken(run="r", step=1, line=2, weights_version=1, groups=(), metrics={})
    for time, event in (
        (0, RunStarted(run="r", document={})),
        (0, sign("R1")),
        (10, GroupAdmitted(run="r", group="g", task="t", env="a", num_episodes=2, step=0)),
        (20, sign("R1")),
        (3620, sign("R2")),
        (3629, step),
        (3630, RunEnded(run="r", reason="completed", steps=1)),
    ):
        view.apply(event, float(time))
    summary = summarize("r", CONFIG, view, LedgerFold().ledger(), counts={}, model_dir="")

    assert summary["wall_seconds"] == {
        "total": 30.0, "start_and_evaluation_before": 10.0, "training": 20.0, "evaluation_after": 0.0,
    }  # fmt: skip
    assert (summary["resumed"], summary["suspended_seconds"]) == (1, 3600.0)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_parts_of_an_interval_cover_what_the_whole_covers(a, b, c, d):
    """Phases cut a suspension without losing any of it."""
    since, until = sorted((a, b))
    span = (since, until)
    low, cut, high = sorted((c, d, 5.0))

    assert seconds_within([span], low, cut) + seconds_within([span], cut, high) == pytest.approx(
        seconds_within([span], low, high)
    )
