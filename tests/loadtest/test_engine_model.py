"""The model of an engine: exact tokens, time that only goes forward, no work left undone, in any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.fleet.cost import Cost, cost_of
from loadtest.fleet.engine_model import Completion, Engine

COST = cost_of()


def ran(engine: Engine) -> list[Completion]:
    """Until nothing is left, stopping at each completion that is announced."""
    done = []
    while (due := engine.next_completion()) is not None:
        completed = engine.advance(due)
        assert completed, "nothing was done at the time that was announced"
        done += completed
    return done


def by_single_tokens(cost: Cost, requests: list[tuple[int, int]]) -> dict[str, float]:
    """The same by brute force, for requests that all come at 0 and all fit."""
    now = sum(cost.prefill_seconds(prompt) for prompt, _ in requests)
    contexts = {f"r{i}": prompt for i, (prompt, _) in enumerate(requests)}
    left = {f"r{i}": tokens for i, (_, tokens) in enumerate(requests)}
    ends = {}
    while left:
        now += cost.step_seconds(len(left), sum(contexts[name] for name in left))
        for name in list(left):
            contexts[name] += 1
            left[name] -= 1
            if not left[name]:
                ends[name] = now
                del left[name]
    return ends


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 400)), min_size=1, max_size=12))
def test_requests_end_when_a_token_by_token_count_says(requests: list[tuple[int, int]]) -> None:
    """The closed form is the sum of the steps."""
    engine = Engine(COST)
    for i, (prompt, tokens) in enumerate(requests):
        engine.add(f"r{i}", prompt=prompt, tokens=tokens)
    expected = by_single_tokens(COST, requests)

    ends = {done.request: done.at for done in ran(engine)}

    assert ends == pytest.approx(expected, rel=1e-9)


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 60_000), st.integers(1, 3000)),
    st.tuples(st.just("advance"), st.floats(0, 20, allow_nan=False), st.just(0)),
    st.tuples(st.just("to_next"), st.just(0), st.just(0)),
    st.tuples(st.just("interrupt"), st.integers(0, 50), st.just(0)),
    st.tuples(st.sampled_from(["pause", "resume", "interrupt_all"]), st.just(0), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=60), st.integers(1, 6))
def test_no_token_is_lost_or_invented_in_any_order_of_calls(operations: list[tuple[str, float, int]], slots: int) -> None:
    """What completions and interruptions name is what was sampled; nobody ends twice, early or beyond its tokens."""
    engine = Engine(COST, slots=slots)
    asked: dict[str, int] = {}
    given_back: dict[str, int] = {}

    def take(done: list[Completion]) -> None:
        for each in done:
            assert each.request not in given_back
            assert each.tokens == asked[each.request]
            given_back[each.request] = each.tokens

    for kind, first, second in operations:
        before = engine.now
        if kind == "add":
            name = f"r{len(asked)}"
            asked[name] = second
            engine.add(name, prompt=int(first), tokens=second, cached=int(first) // 2)
        elif kind == "advance":
            take(engine.advance(engine.now + first))
        elif kind == "to_next" and (due := engine.next_completion()) is not None:
            take(engine.advance(due))
        elif kind == "interrupt" and engine.requests:
            name = engine.requests[int(first) % engine.num_requests]
            given_back[name] = engine.interrupt(name)
            assert 0 <= given_back[name] < asked[name]
        elif kind == "pause":
            engine.pause()
        elif kind == "resume":
            engine.resume()
        elif kind == "interrupt_all":
            given_back.update(engine.interrupt_all())
        assert engine.now >= before
        assert engine.num_running <= slots
    engine.resume()
    take(ran(engine))

    assert set(given_back) == set(asked)
    assert sum(given_back.values()) == engine.sampled_tokens


@given(st.lists(st.floats(0.001, 5, allow_nan=False), max_size=30), st.integers(1, 2000), st.integers(1, 2000))
def test_looking_often_changes_nothing(pieces: list[float], first: int, second: int) -> None:
    """Advancing in pieces ends requests when advancing at once does, up to rounding."""
    at_once, in_pieces = Engine(COST), Engine(COST)
    for engine in (at_once, in_pieces):
        engine.add("a", prompt=100, tokens=first)
        engine.add("b", prompt=900, tokens=second, cached=300)
    done = []
    for piece in pieces:
        done += in_pieces.advance(in_pieces.now + piece)
    done += ran(in_pieces)
    expected = {each.request: each.at for each in ran(at_once)}

    assert in_pieces.sampled_tokens == at_once.sampled_tokens == first + second
    assert {each.request: each.at for each in done} == pytest.approx(expected, rel=1e-6)


def test_it_works_as_long_as_it_has_work() -> None:
    """Busy time is all time from the first request to the last token, pauses left out."""
    engine = Engine(COST)
    engine.advance(10.0)
    engine.add("a", prompt=1000, tokens=500)
    engine.advance(12.0)
    engine.pause()
    engine.advance(15.0)
    engine.resume()
    end = ran(engine)[-1].at

    assert engine.busy_seconds == pytest.approx(end - 10.0 - 3.0)


def test_who_finds_no_slot_or_no_room_waits_its_turn() -> None:
    """Slots and cache are limits; first come, first served."""
    engine = Engine(COST, slots=1)
    engine.add("a", prompt=0, tokens=10)
    engine.add("b", prompt=0, tokens=1)
    assert (engine.num_running, engine.num_requests, engine.free_slots) == (1, 2, 0)
    assert [done.request for done in ran(engine)] == ["a", "b"]

    full = Engine(COST)
    full.add("big", prompt=COST.kv_tokens - 10, tokens=5)
    full.add("next", prompt=100, tokens=1)
    assert full.num_running == 1
    with pytest.raises(ValueError, match="cannot sample"):
        full.add("never", prompt=COST.kv_tokens, tokens=1)


def test_a_bigger_batch_makes_more_tokens_and_longer_steps() -> None:
    """Weights are read once for all: that is why engines batch, and why the tail of a batch is slow."""
    rate = {batch: batch / COST.step_seconds(batch, batch * 4000) for batch in (1, 8, 64, 256)}

    assert rate[1] < rate[8] < rate[64] < rate[256] < 256 * rate[1]
