"""What every node did, from a run's journal.

| the journal holds | the node's lane |
|---|---|
| a lease and its taking | load, then what the service does |
| another lease | hand-over from its first word to the taking, whatever order they were stored in |
| BatchReady … StepTaken while the trainer holds the device | train; the rest of its time waits for a step |
| a step that was never taken | no training |
| generations between claim and end | rollout; nothing in flight: waiting |
| no word of which process samples where | held: unknown |
| a process that was replaced, a node that is gone | away from its last sign |
"""

import pytest

from seamlessflow.contracts import GenerationFinish, TrainerClaimed
from seamlessflow.timeline import SpanKind
from tests.domain.lanes_builders import (
    IDLE,
    ROLLOUT,
    SERVE,
    TRAIN,
    TRAINER,
    assigned,
    batch_ready,
    claimed,
    drawn,
    ended,
    episode_ended,
    generation_ended,
    lanes_of,
    line_began,
    loaded,
    published,
    released,
    requested,
    segment,
    started,
    step_taken,
    taken,
)
from tests.domain.test_run_view import samples

SAMPLING = (
    (0, started()),
    (1, assigned("n", 1, ROLLOUT)),
    (4, loaded("w", "n")),
    (4, taken("n", 1)),
    (4, claimed("g", "w")),
)
"""Node n loads from 1 to 4, and then has a generation in its engine."""


def test_a_lent_node_rolls_out_hands_over_trains_and_rolls_out_again():
    """Every second of it is told."""
    lanes = lanes_of(
        *SAMPLING,
        (10, batch_ready(1)),
        (10, assigned("n", 2, TRAIN, reason="a batch is ready")),
        (11, released("n", 2)),
        (12, taken("n", 2, TRAINER)),
        (20, step_taken(1)),
        (21, assigned("n", 3, ROLLOUT)),
        (21, released("n", 3, TRAINER)),
        (22, taken("n", 3)),
        (30, segment("g")),
        (30, ended()),
    )

    assert drawn(lanes, "n") == (
        "away 0-1, load 1-4, rollout 4-10, hand-over 10-12, train 12-20, train-waiting 20-21, hand-over 21-22, rollout 22-30"
    )
    assert {(span.epoch, span.reason) for span in lanes.spans if span.kind is SpanKind.TRAIN} == {(2, "a batch is ready")}


def test_a_lease_may_be_said_after_its_services_obeyed_it():
    """The scheduler writes a lease, and its word of that comes later; the trainer's taking may come before the release, too."""
    lanes = lanes_of(
        *SAMPLING,
        (9, segment("g")),
        (10, taken("n", 2, TRAINER)),
        (11, released("n", 2)),
        (12, assigned("n", 2, TRAIN)),
        (14, ended()),
    )

    assert drawn(lanes, "n").endswith("load 1-4, rollout 4-9, rollout-waiting 9-10, train-waiting 10-14")


def test_a_step_that_was_never_taken_is_no_training():
    """The trainer died over it, and its next line took it."""
    lanes = lanes_of(
        (0, assigned("n", 1, TRAIN)),
        (0, taken("n", 1, TRAINER)),
        (0, line_began(1)),
        (1, batch_ready(1)),
        (2, line_began(2)),
        (3, batch_ready(1, line=2)),
        (9, step_taken(1, line=2)),
        (9, ended()),
    )

    assert drawn(lanes, "n") == "train-waiting 0-3, train 3-9"


def test_a_step_of_a_line_that_another_claim_abandoned_is_no_training():
    """A trainer that wakes late publishes its step; so does its end, which an earlier release compares with nothing."""
    lanes = lanes_of(
        (0, assigned("n", 1, TRAIN)),
        (0, taken("n", 1, TRAINER)),
        (1, batch_ready(1)),
        (2, TrainerClaimed(run="r", line=2, nonce="n2", by="trainer")),
        (2, line_began(2).model_copy(update={"nonce": "n2"})),
        (3, step_taken(1)),
        (3, ended()),
        (4, batch_ready(1, line=2)),
        (9, step_taken(1, line=2)),
    )

    assert drawn(lanes, "n") == "train-waiting 0-4, train 4-9"
    assert [step.time for step in lanes.steps] == [9]


def test_a_step_in_progress_counts_in_a_run_that_goes_on():
    """Up to the newest event; and the picture says that the run goes on."""
    journal = [(0, assigned("n", 1, TRAIN)), (0, taken("n", 1, TRAINER)), (1, batch_ready(1)), (7, published(0, 0))]

    assert drawn(lanes_of(*journal), "n") == "train-waiting 0-1, train 1-7"
    assert "has not ended" in lanes_of(*journal).notes[0]
    assert drawn(lanes_of(*journal, (9, ended())), "n") == "train-waiting 0-9"


def test_a_gang_trains_while_its_lead_takes_the_step():
    """b holds its device for a; c holds one, too, and was left out."""
    lanes = lanes_of(
        (0, batch_ready(1)),
        *((0, assigned(node, 1, TRAIN, gang=("a", node))) for node in "bc"),
        (0, assigned("a", 1, TRAIN, gang=("a", "b"))),
        (2, taken("b", 1, TRAINER)),
        (2, taken("c", 1, TRAINER)),
        (3, taken("a", 1, TRAINER)),
        (8, step_taken(1)),
        (9, ended()),
    )

    assert drawn(lanes, "a") == "load 0-3, train 3-8, train-waiting 8-9"
    assert drawn(lanes, "b") == "load 0-2, train-waiting 2-3, train 3-8, train-waiting 8-9"
    assert drawn(lanes, "c") == "load 0-2, train-waiting 2-9"


def test_a_node_that_is_to_stop_hands_over_until_it_let_go():
    """Colocated: idle while another trains."""
    lanes = lanes_of(*SAMPLING, (8, segment("g")), (8, assigned("n", 2, IDLE)), (9, released("n", 2)), (12, ended()))

    assert drawn(lanes, "n") == "away 0-1, load 1-4, rollout 4-8, hand-over 8-9, idle 9-12"


def test_a_node_given_to_another_run_is_away():
    """Its time is that run's."""
    lanes = lanes_of(*SAMPLING, (8, segment("g")), (8, assigned("n", 2, IDLE, left=True)), (9, released("n", 2)), (12, ended()))

    assert drawn(lanes, "n").endswith("rollout 4-8, hand-over 8-9, away 9-12")


def test_a_dead_node_is_away_from_its_last_sign():
    """Its lease says so much later; what it did in between nobody knows."""
    lanes = lanes_of(
        *SAMPLING, (6, segment("g")), (20, assigned("n", 2, IDLE, left=True, reason="the node is gone")), (30, ended())
    )

    assert drawn(lanes, "n").endswith("rollout 4-6, away 6-20, away 20-30")


def test_a_worker_that_was_replaced_was_away_in_between():
    """Its successor says that it loaded weights; the lease is the same, so no other role was said."""
    lanes = lanes_of(
        *SAMPLING, (6, segment("g")), (9, loaded("w2", "n")), (10, claimed("g", "w2")), (12, segment("g")), (12, ended())
    )

    assert drawn(lanes, "n").endswith("rollout 4-6, away 6-9, rollout-waiting 9-10, rollout 10-12")


def test_a_worker_whose_generations_others_claim_was_dead():
    """Nobody took its place before the run ended: it is away from its last sign on. One that speaks again was not dead."""
    taken_over = [(5, assigned("m", 1, ROLLOUT)), (5, loaded("v", "m")), (6, segment("g")), (9, claimed("g", "v"))]

    dead = lanes_of(*SAMPLING, *taken_over, (12, ended()))
    slow = lanes_of(*SAMPLING, *taken_over, (11, loaded("w", "n", version=1)), (12, ended()))

    assert drawn(dead, "n").endswith("rollout 4-6, away 6-12")
    assert drawn(slow, "n").endswith("rollout 4-6, rollout-waiting 6-12")


def test_a_first_segment_claims_as_a_claim_does():
    """Its generation is in the engine of the worker it names until its end."""
    lanes = lanes_of(*SAMPLING[:-1], (5, segment("g", worker="w")), (7, segment("g", finish="stop")), (9, ended()))

    assert drawn(lanes, "n").endswith("rollout-waiting 4-5, rollout 5-7, rollout-waiting 7-9")


def test_what_a_silent_worker_does_is_unknown():
    """It has a generation; nobody else is there to go on with it."""
    quiet = [(6 + second, published(second, second)) for second in range(20)]

    assert drawn(lanes_of(*SAMPLING, (6, segment("g")), *quiet), "n").endswith("rollout 4-6, rollout-held 6-25")


def test_a_suspended_run_has_nobody_there():
    """All its processes ended, and new ones came."""
    lanes = lanes_of(
        *SAMPLING, (6, segment("g")), (60, loaded("w2", "n")), (60, claimed("g", "w2")), (61, segment("g")), (61, ended())
    )

    assert drawn(lanes, "n").endswith("rollout 4-6, away 6-60, rollout 60-61")


def test_what_samples_where_is_unknown_in_old_journals_of_several_nodes():
    """Where WeightsLoaded names no node. On a run's only node there is no doubt."""
    start = [(0, assigned("a", 1, ROLLOUT)), (0, taken("a", 1)), (0, loaded("w")), (0, claimed("g", "w"))]
    second = [(0, assigned("b", 1, ROLLOUT)), (0, taken("b", 1))]
    end = [(5, segment("g")), (5, ended())]

    assert drawn(lanes_of(*start, *end), "a") == "rollout 0-5"
    unknown = lanes_of(*start, *second, *end)
    assert drawn(unknown, "a") == "rollout-held 0-5"
    assert "a, b is not said" in unknown.notes[0]


def test_a_node_that_only_serves_has_no_lane():
    """Agent-runners and trajectory-managers have no device."""
    assert lanes_of((0, assigned("trees", 1, SERVE)), (1, taken("n", 1)), (2, ended())).nodes == ["n"]


def test_pauses_are_no_sampling():
    """Two generations, then none for a while, then weights that stop the engine for a second."""
    lanes = lanes_of(
        *SAMPLING,
        (6, segment("g", finish=GenerationFinish.STOP)),
        (8, claimed("h", "w")),
        (11, loaded("w", "n", version=1, pause=1.0)),
        (12, generation_ended("h")),
        (12, ended()),
    )

    assert drawn(lanes, "n").endswith("rollout 4-6, rollout-waiting 6-8, rollout 8-10, rollout-waiting 10-11, rollout 11-12")


def test_pauses_shorter_than_a_bin_are_a_share():
    """Half of each of many milliseconds."""
    turns = []
    for k in range(512):
        turns += [(4 + k / 256, claimed(f"g{k}", "w")), (4 + k / 256 + 1 / 512, generation_ended(f"g{k}"))]
    lanes = lanes_of(*SAMPLING[:-1], *turns, (6, ended()))

    (rollout,) = [span for span in lanes.spans if span.kind is SpanKind.ROLLOUT]
    assert rollout.busy == pytest.approx(0.5, abs=0.01)


def test_what_waits_and_what_is_in_flight_is_counted():
    """Asked for at 0 and 1; claimed at 2, handed back at 3; ended with its episode at 4."""
    lanes = lanes_of(
        (0, assigned("n", 1, ROLLOUT)),
        (0, loaded("w", "n")),
        (0, requested("g")),
        (1, requested("h")),
        (2, claimed("g", "w")),
        (3, released("n", 2, num_handed_back=1)),
        (4, episode_ended()),
        (5, ended()),
    )

    assert lanes.queued is not None and lanes.in_flight is not None
    assert [lanes.queued.values[32 * second] for second in range(5)] == [1, 2, 1, 2, 0]
    assert [lanes.in_flight.values[0 + 32 * second] for second in range(2)] == [1, 0]
    assert lanes.in_flight.start == 2


def test_a_generation_claimed_by_another_is_the_others():
    """The first holder is fenced off: it samples nothing any more."""
    lanes = lanes_of(
        *SAMPLING,
        (5, assigned("m", 1, ROLLOUT)),
        (6, segment("g")),
        (9, loaded("v", "m")),
        (9, claimed("g", "v")),
        (12, segment("g")),
        (12, ended()),
    )

    assert lanes.in_flight is not None
    assert lanes.in_flight.values[-1] == 1
    assert sum(lanes.node_in_flight["n"].values) * lanes.node_in_flight["n"].width == 2
    assert sum(lanes.node_in_flight["m"].values) * lanes.node_in_flight["m"].width == 3


def test_ages_come_from_the_step_or_from_its_tokens():
    """A trainer that leaves them out of its metrics is helped: the samples say which versions they are of."""
    said = lanes_of((0, step_taken(1, staleness_mean=0.5, staleness_max=2.0)))
    found = lanes_of(
        (0, published(0, 0)), (1, published(1, 1)), (2, samples("g", (0, 3), (1, 1))), (3, step_taken(3, groups=("g",)))
    )
    unknown = lanes_of((0, step_taken(1)))

    assert [(step.staleness_mean, step.staleness_max) for step in said.steps] == [(0.5, 2.0)]
    assert [(step.staleness_mean, step.staleness_max) for step in found.steps] == [(1.75, 2.0)]
    assert [(step.staleness_mean, step.staleness_max) for step in unknown.steps] == [(None, None)]


def test_a_part_is_cut_out_and_keeps_its_place():
    """Times of a part still count from the run's beginning."""
    lanes = lanes_of(*SAMPLING, (10, segment("g")), (12, step_taken(1)), (20, ended())).part(3, 12)

    assert drawn(lanes, "n") == "load 3-4, rollout 4-10, rollout-waiting 10-12"
    assert (lanes.start, lanes.end, lanes.origin, len(lanes.steps)) == (3, 12, 0, 1)
    assert lanes.part(30, 40).spans == []


def test_a_node_that_keeps_generations_while_it_is_idle_is_not_free_but_frozen():
    """With how many, until it rolls out again or hands them back; while its trainer has the device, it trains."""
    lanes = lanes_of(
        *SAMPLING,
        (10, assigned("n", 2, IDLE, reason="a batch is ready")),
        (11, released("n", 2, num_frozen=3)),
        (15, assigned("n", 3, IDLE, reason="it lacks h800")),
        (16, released("n", 3, num_handed_back=3)),
        (20, ended()),
    )

    assert drawn(lanes, "n") == "away 0-1, load 1-4, rollout 4-10, hand-over 10-11, frozen 11-15, idle 15-20"
    assert [s.reason for s in lanes.spans if s.kind is SpanKind.FROZEN] == ["a batch is ready; frozen with 3 generations"]
