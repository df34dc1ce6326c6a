"""Lanes of any journal: no second of a node is told twice or left out, and what is unrelated may be stored in any order."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.timeline import Window, shares_by_node, total
from tests.domain.lanes_builders import (
    IDLE,
    ROLLOUT,
    TRAIN,
    TRAINER,
    WORKER,
    assigned,
    batch_ready,
    claimed,
    ended,
    episode_ended,
    generation_ended,
    lanes_of,
    loaded,
    published,
    released,
    requested,
    segment,
    step_taken,
    taken,
)

NODES = ("a", "b", "c")
ticks = st.integers(0, 120).map(lambda tick: tick / 64)  # within two seconds nothing looks like a suspension


@st.composite
def words_of_a_node(draw, node):
    """Leases with their services' words, in any order; generations of its worker; some words are lost."""
    words = []
    for epoch in range(1, draw(st.integers(1, 5)) + 1):
        role = draw(st.sampled_from([ROLLOUT, TRAIN, IDLE]))
        gang = (
            draw(st.sampled_from([(), (node,), (node, *(other for other in NODES if other != node))])) if role is TRAIN else ()
        )
        said = [assigned(node, epoch, role, reason=f"because {epoch}", gang=gang, left=role is IDLE and draw(st.booleans()))]
        said += [word(node, epoch, service) for word in (taken, released) for service in (WORKER, TRAINER)]
        words += draw(st.lists(st.sampled_from(said), unique_by=lambda event: event.model_dump_json(), max_size=5))
    names = [node if draw(st.booleans()) else "" for _ in range(2)]
    for place in range(draw(st.integers(0, 12))):
        key = (f"{node}{place % 3}", f"{node}-{place % 2}")
        worker = draw(st.sampled_from([0, 1]))
        words.append(
            draw(
                st.sampled_from(
                    [
                        loaded(f"{node}-w{worker}", names[worker], pause=0.125),
                        requested(*key),
                        claimed(key[0], f"{node}-w{worker}", key[1]),
                        segment(*key),
                        generation_ended(*key),
                        episode_ended(key[1]),
                    ]
                )
            )
        )
    times = sorted(draw(st.lists(ticks, min_size=len(words), max_size=len(words))))
    return list(zip(times, words, strict=True))


@st.composite
def words_of_the_trainer(draw):
    """Steps, of which some are never taken."""
    words = []
    for step in range(1, draw(st.integers(0, 4)) + 1):
        words.append(batch_ready(step))
        if draw(st.booleans()):
            words += [published(step, step), step_taken(step, staleness_mean=1.0, staleness_max=1.0)]
    times = sorted(draw(st.lists(ticks, min_size=len(words), max_size=len(words))))
    return list(zip(times, words, strict=True))


journals = st.tuples(*(words_of_a_node(node) for node in NODES), words_of_the_trainer())


def mixed(streams, seed):
    """One journal: each stream in its own order, otherwise as chance will have it."""
    rest, random, journal = [list(stream) for stream in streams if stream], Random(seed), []
    while rest:
        stream = random.choice(rest)
        journal.append(stream.pop(0))
        rest = [stream for stream in rest if stream]
    return journal


@given(journals, st.integers(0, 2**32), st.booleans())
def test_spans_of_a_node_follow_one_another_without_gap_or_overlap(streams, seed, has_ended):
    """From the first event to the last one, whatever was lost or came late."""
    lanes = lanes_of(*mixed(streams, seed), *([(2.0, ended())] if has_ended else []))

    for node in lanes.nodes:
        spans = [span for span in lanes.spans if span.node == node]
        assert (spans[0].start, spans[-1].end) == (lanes.start, lanes.end)
        assert all(former.end == later.start for former, later in pairwise(spans))
        assert all(span.start < span.end and 0 <= span.busy <= 1 for span in spans)


@given(journals, st.integers(0, 2**32), ticks, ticks)
def test_shares_of_a_window_sum_to_one(streams, seed, one, other):
    """Of each node, and of all together; busy and hand-over are parts of it."""
    lanes = lanes_of(*mixed(streams, seed), (2.0, ended()))
    window: Window = (max(lanes.start, min(one, other)), max(lanes.start, min(one, other)) + 0.25)
    window = (window[0], min(window[1], lanes.end))
    shares = shares_by_node(lanes.spans, window)

    for each in [*shares.values(), total(shares.values())]:
        assert each.share(*each.by_kind) == pytest.approx(1.0 if each.seconds else 0.0)
        assert 0 <= each.busy + each.hand_over <= 1 + 1e-9


@given(journals, st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_order_of_unrelated_events_is_irrelevant(streams, one, other):
    """Nodes and the trainer each say things in their order; how those are mixed in the journal changes nothing."""
    first, second = (lanes_of(*mixed(streams, seed), (2.0, ended())) for seed in (one, other))

    assert first == second
