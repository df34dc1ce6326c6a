"""Trees and samples. Trained tokens are drawn in brackets, letters stand for one token each.

chain       "sys q [a] r [b]"                    one sample
branch      "q [a] r [b]"   "q a s [c]"          the shared turn is trained once
parallel    "q [a]"         "q [b]"              two answers to one prompt
undelivered "q [a]"         (b is left out)
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import EpisodeStatus, Float32s, Int32s, Sample
from seamlessflow_trajectory_manager.trajectory.samples import samples_of
from seamlessflow_trajectory_manager.trajectory.tree import Tree, Turn, merge_runs
from tests.domain.trajectory_builders import CHATML, World, renderer, tokenizer, user


def turn(call: str, parent: str | None, suffix: str, said: str, version: int = 0) -> Turn:
    ids = [ord(c) for c in said]
    return Turn(call, parent, Int32s(map(ord, suffix)), Int32s(ids), Float32s([-1.0] * len(ids)), ((version, len(ids)),))


def tree(*turns: Turn) -> Tree:
    made = Tree()
    for each in turns:
        made.add(each)
    return made


def drawn(sample: Sample) -> str:
    text = [chr(i) for i in sample.token_ids]
    for start, end in sample.spans:
        text[start] = "[" + text[start]
        text[end - 1] += "]"
    return "".join(text)


A, B, C = turn("a", None, "q", "AA"), turn("b", "a", "r", "B"), turn("c", "a", "s", "CC")


def test_a_chain_is_one_sample():
    """Every turn of it is trained."""
    assert [drawn(s) for s in samples_of(tree(A, B))] == ["q[AA]r[B]"]


def test_a_shared_turn_is_trained_in_the_first_path_only():
    """In the others it is context."""
    assert [drawn(s) for s in samples_of(tree(A, B, C))] == ["q[AA]r[B]", "qAAs[CC]"]


def test_paths_are_in_the_order_in_which_calls_were_asked():
    """Not in that of their answers. Random ids of older journals tell no order, so theirs stays what it was."""
    assert [drawn(s) for s in samples_of(tree(A, C, B))] == ["q[AA]r[B]", "qAAs[CC]"]
    old = [turn("c" + "a" * 24, None, "q", "AA"), turn("c" + "9" * 24, "c" + "a" * 24, "r", "B")]
    old.append(turn("c" + "1" * 24, "c" + "a" * 24, "s", "CC"))
    assert [drawn(s) for s in samples_of(tree(*old))] == ["q[AA]r[B]", "qAAs[CC]"]


def test_two_answers_to_one_prompt_are_two_samples():
    """Parallel calls share nothing that was sampled."""
    assert [drawn(s) for s in samples_of(tree(A, turn("d", None, "q", "D")))] == ["q[AA]", "q[D]"]


def test_an_undelivered_leaf_is_left_out():
    """Nobody acted on it, so the reward says nothing about it."""
    assert [drawn(s) for s in samples_of(tree(A, B, C), {"b"})] == ["q[AA]s[CC]"]
    assert samples_of(tree(A), {"a"}) == ()


def test_an_undelivered_turn_that_was_continued_is_context():
    """Something of it reached the agent; its tokens must stay where they were fed."""
    assert [drawn(s) for s in samples_of(tree(A, B), {"a"})] == ["qAAr[B]"]


def test_a_turn_without_tokens_gives_no_sample():
    """An empty answer trains nothing."""
    assert samples_of(tree(turn("e", None, "q", ""))) == ()


def test_versions_are_counted_over_trained_tokens_only():
    """The untrained prefix has other versions."""
    newer = turn("b", "a", "r", "BB", version=3)
    assert [s.versions for s in samples_of(tree(A, newer, C))] == [((0, 2), (3, 2)), ((0, 2),)]
    assert merge_runs([(1, 2), (1, 3), (2, 0), (1, 1)]) == ((1, 6),)


def test_a_turn_of_unequal_lengths_cannot_be_made():
    """Ids, logprobs and versions always have one length."""
    with pytest.raises(AssertionError):
        Turn("a", None, Int32s(), Int32s([1, 2]), Float32s([0.0]), ((0, 2),))


def test_adding_a_turn_twice_changes_nothing():
    """Events come more than once."""
    once, twice = tree(A, B), tree(A, B, A, B)
    assert [s.token_ids for s in samples_of(once)] == [s.token_ids for s in samples_of(twice)]
    assert twice.num_roots == 1


moves = st.lists(
    st.tuples(
        st.sampled_from(["continue", "parallel", "rewrite", "root", "again"]),
        st.integers(min_value=0, max_value=30),
        st.text(alphabet="ab\n", max_size=6),
        st.booleans(),
        st.lists(st.integers(min_value=1, max_value=6), max_size=2),
    ),
    min_size=1,
    max_size=10,
)


def grow(world: World, script: list[Any]) -> list[str]:
    """Play an agent's moves; returns the calls that were answered."""
    asked: list[list[dict[str, Any]]] = []
    answered: list[list[dict[str, Any]]] = []
    calls = []
    for number, (move, choice, said, truncated, cuts) in enumerate(script):
        history = answered[choice % len(answered)] if answered else []
        if move == "rewrite" and history:
            history = [{**m, "content": "rewritten"} if m["role"] == "assistant" else m for m in history]
        if move == "root" or not history:
            messages = [user(f"root {number % 3}")]
        elif move == "parallel":
            messages = asked[choice % len(asked)]
        else:
            messages = [*history, user(f"more {number % 2}")]
        ids = tokenizer().encode(said if truncated else said + "<|im_end|>")
        answer = world.turn(messages, ids, cuts=cuts, version=number)
        assert answer.usage is not None and answer.usage.completion_tokens == len(ids)
        asked.append(messages)
        answered.append([*messages, answer.message])
        calls.append(answer.call)
    return calls


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=moves, drop=st.sets(st.integers(min_value=0, max_value=9), max_size=3))
def test_every_sampled_token_is_trained_at_most_once(script: list[Any], drop: set[int]):
    """Over random trees with parallel calls, forks and rewritten history: what is trained is what was sampled, once."""
    world = World()
    calls = grow(world, script)
    undelivered = {call for number, call in enumerate(calls) if number in drop}
    ready = world.ends(undelivered=tuple(sorted(undelivered)))
    engine, seen = world.engine, []
    streams = {tuple(engine.fed[call] + engine.sampled[call]) for call in calls}
    for sample in ready.samples:
        ids = list(sample.token_ids)
        assert tuple(ids) in streams
        positions = [position for start, end in sample.spans for position in range(start, end)]
        versions = [version for version, count in sample.versions for _ in range(count)]
        assert positions == sorted(set(positions)) and len(positions) == len(sample.logprobs) == len(versions)
        for position, logprob, version in zip(positions, sample.logprobs, versions, strict=True):
            call, token, sampled_by = engine.token_of[logprob]
            assert (ids[position], version) == (token, sampled_by) and call not in undelivered
            seen.append(logprob)
    assert len(seen) == len(set(seen))
    assert set(seen) == {lp for lp, (call, _, _) in engine.token_of.items() if call not in undelivered}
    assert ready.num_sampled == len(engine.token_of)
    assert ready.num_undelivered == len(engine.token_of) - len(seen)


@settings(max_examples=60, deadline=None)
@given(script=moves)
def test_what_the_engine_is_fed_reads_as_the_template_says(script: list[Any]):
    """Whatever was reused or forked, the prompt's text is the conversation under the model's template.

    A turn that ran out of budget has no close token of its own; the next suffix brings it.
    """
    world = World()
    asked: dict[str, list[dict[str, Any]]] = {}
    original = world.agent.asks

    def remember(messages: Any, *rest: Any, **fields: Any) -> Any:
        event = original(messages, *rest, **fields)
        asked[event.call] = list(messages)
        return event

    world.agent.asks = remember  # type: ignore[method-assign]
    grow(world, script)
    for call, messages in asked.items():
        expected = tokenizer().decode(renderer(CHATML).render(messages, None))
        assert tokenizer().decode(world.engine.fed[call]) == expected


@settings(max_examples=60, deadline=None)
@given(script=moves, count=st.integers(min_value=1, max_value=80), data=st.data())
def test_a_tree_knows_its_prompts_ends_and_where_ids_go_on(script: list[Any], count: int, data: st.DataObject):
    """The end of a prompt is read without the rest of it; ids are matched up to a turn's end, never in the middle of one."""
    world = World()
    calls = grow(world, script)
    episode = world.manager.episode(world.agent.episode)
    assert episode is not None
    tree, engine = episode.tree, world.engine
    for call in calls:
        known = tree[call]
        assert list(tree.prompt_end(known.parent, known.suffix, count)) == engine.fed[call][-count:]
        assert tree.prompt_ids(call) == engine.fed[call]
        assert list(tree.token_ids(call)) == engine.fed[call] + engine.sampled[call]
    call = data.draw(st.sampled_from(calls))
    whole = list(tree.token_ids(call))
    ids = whole[: data.draw(st.integers(min_value=0, max_value=len(whole)))] + data.draw(st.lists(st.just(0), max_size=3))
    fitting = [
        turn.call for turn in tree.path(call) if ids[: tree.num_tokens(turn.call)] == whole[: tree.num_tokens(turn.call)]
    ]
    expected = [turn for turn in fitting if tree.num_tokens(turn) <= len(ids)]
    assert tree.longest_prefix(call, Int32s(ids)) == (expected[-1] if expected else None)


@pytest.mark.parametrize("status", [status for status in EpisodeStatus if status is not EpisodeStatus.COMPLETED])
def test_an_episode_that_did_not_complete_has_no_samples(status: EpisodeStatus):
    """Its tokens are counted all the same."""
    world = World()
    world.turn([user("q")], "seven")
    ready = world.ends(status=status)
    assert (ready.samples, ready.num_sampled, ready.reward) == ((), len("seven") + 1, None)
