"""How a call ends, and what of it is shown: stop texts, logprobs, clients that go, prompts without a template.

stop text    the text is cut, the ids are kept          [p o e m \n S T O P] is told as "poem"
logprobs     one text for each token, joined the whole
cancelled    kept in the tree, never trained, an error to whoever still asks
raw prompt   text in, text out; goes on from an earlier turn's ids where it begins with its text
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import CallAnswered, GenerationEnded, GenerationFinish, GenerationRequested
from seamlessflow.tokenization.tokenizer import THINK, THOUGHT
from seamlessflow_trajectory_manager.replay_comparison import HEARD, replay
from tests.domain.trajectory_builders import CALC, World, ids_of, manager, renderer, tokenizer, user

TOOL_CALL = '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'


@pytest.fixture
def world() -> World:
    return World()


def ask(world: World, messages: list[dict[str, Any]], tools: list[Any] | None = None, **fields: Any) -> GenerationRequested:
    (request,) = world.tells(world.agent.asks(messages, tools, **fields))
    assert isinstance(request, GenerationRequested)
    return request


def stopped(world: World, request: GenerationRequested, said: str, **how: Any) -> CallAnswered:
    """As by a worker that found a stop text: no end-of-turn token, and the end says STOP."""
    events = world.engine.generates(request, said, **how)
    events[-1] = events[-1].model_copy(update={"finish": GenerationFinish.STOP})
    answer = next(each for event in events for each in world.tells(event))
    assert isinstance(answer, CallAnswered)
    return answer


def prompt(text: str) -> list[dict[str, Any]]:
    return [{"role": "prompt", "content": text}]


def replays(world: World) -> None:
    """A fresh manager says the same."""
    events = [("", event) for event in world.journal]
    compared = replay(events, manager())
    assert compared.differences == [] and compared.num_compared == compared.num_equal > 0
    assert any(isinstance(event, HEARD) for event in world.journal)


def test_an_answer_is_cut_at_its_stop_text(world: World):
    """The worker keeps the tokens up to the one that completes it, and so do we; the client sees neither."""
    request = ask(world, [user("q")], stop=("\nSTOP", "never"))
    assert request.stop == ("\nSTOP", "never")
    answer = stopped(world, request, "poem\nSTOP!", cuts=[2, 7])
    assert answer.message["content"] == "poem"
    assert (answer.finish_reason, answer.stop_sequence) == ("stop", "\nSTOP")
    assert answer.usage is not None and answer.usage.completion_tokens == len("poem\nSTOP!")
    (sample,) = world.ends().samples
    assert list(sample.token_ids)[-10:] == ids_of("poem\nSTOP!") and sample.spans[0][1] == len(sample.token_ids)
    replays(world)


def test_a_stop_text_may_come_with_the_last_token_of_the_budget(world: World):
    """It is the stop text that the client asked for."""
    answer = world.answers(ask(world, [user("q")], stop=("P",)), "STOP", truncated=True)
    assert (answer.finish_reason, answer.stop_sequence, answer.message["content"]) == ("stop", "P", "STO")


def test_without_a_stop_text_nothing_is_cut(world: World):
    """An end-of-turn token came first."""
    answer = world.answers(ask(world, [user("q")], stop=("P",)), "seven")
    assert (answer.finish_reason, answer.stop_sequence, answer.message["content"]) == ("stop", None, "seven")


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (("b", "abc"), "xabcd", ("xa", "b")),
        (("bc", "abc"), "xabcd", ("x", "abc")),
        (("x", "x"), "abx", ("ab", "x")),
        (("",), "ab", ("ab", None)),
        (("漢",), "a漢b", ("a", "漢")),
    ],
)
def test_the_stop_text_that_is_complete_first_counts(world: World, stops: tuple[str, ...], text: str, expected: Any):
    """As if the text had been read character by character."""
    answer = stopped(world, ask(world, [user("q")], stop=stops), text)
    assert (answer.message["content"], answer.stop_sequence) == expected


def test_thoughts_and_calls_before_the_stop_text_count_and_none_behind_it(world: World):
    """The text is cut before it is parsed."""
    request = ask(world, [user("q")], [CALC], stop=("STOP",))
    answer = stopped(world, request, f"{THINK}hm{THOUGHT}\n\nlet me {TOOL_CALL} STOP {TOOL_CALL}")
    assert (answer.message["reasoning_content"], answer.message["content"]) == ("hm", "let me")
    assert len(answer.message["tool_calls"]) == 1
    assert (answer.finish_reason, answer.stop_sequence) == ("tool_calls", "STOP")
    cut = stopped(world, ask(world, [user("r")], [CALC], stop=('"arguments"',)), TOOL_CALL)
    assert "tool_calls" not in cut.message and cut.message["content"] == '<tool_call>{"name": "calc", '


def test_a_stop_text_in_the_thoughts_leaves_no_content(world: World):
    """What is thought is sampled text as any other."""
    answer = stopped(world, ask(world, [user("q")], stop=("STOP",)), f"{THINK}hm STOP")
    assert (answer.message["reasoning_content"], answer.message["content"]) == ("hm ", "")


def test_the_turn_after_a_stop_text_goes_on_from_its_ids(world: World):
    """The client brings back the cut text; what was sampled stays as it was, and the template closes the turn."""
    first = stopped(world, ask(world, [user("q")], stop=("STOP",)), "poem STOP")
    second = ask(world, [user("q"), first.message, user("r")])
    assert second.parent == first.call
    assert tokenizer().decode(list(second.suffix)).startswith("<|im_end|>\n<|im_start|>user\nr")


def test_logprobs_come_with_each_tokens_text(world: World):
    """Joined they are what was sampled; a character's bytes are its last token's, the end of turn says nothing."""
    request = ask(world, [user("q")], logprobs=True)
    answer = world.answers(request, "a漢", cuts=[2])
    assert answer.tokens is not None
    assert answer.tokens.texts == ("a", "", "", "漢", "")
    assert list(answer.tokens.token_ids) == ids_of("a漢<|im_end|>")
    (sample,) = world.ends().samples
    assert list(answer.tokens.logprobs) == list(sample.logprobs)
    replays(world)


def test_logprobs_are_only_there_when_asked_for(world: World):
    """They cost the journal as much as the tokens do."""
    assert world.turn([user("q")], "seven").tokens is None


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=30))
def test_texts_of_tokens_are_as_many_and_join_to_the_whole(ids: list[int]):
    """For any ids, broken characters and special tokens among them."""
    visible = renderer().visible
    texts = visible.texts(ids)
    assert len(texts) == len(ids) and "".join(texts) == visible.text(ids)


def test_a_client_that_went_leaves_a_turn_that_is_never_trained(world: World):
    """What was sampled counts; whoever asks is told."""
    world.turn([user("p")], "first")
    request = ask(world, [user("q")])
    *sampled, end = world.engine.generates(request, "seve", cuts=[2])
    answer = next(each for event in [*sampled, _cancelled(end)] for each in world.tells(event))
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert (answer.error.status, answer.error.code) == (499, "client_gone")
    ready = world.ends()
    assert (ready.num_sampled, ready.num_undelivered, ready.num_roots, len(ready.samples)) == (6 + 4, 4, 2, 1)
    replays(world)


def test_a_call_that_was_cancelled_before_its_first_token_is_no_turn(world: World):
    """There is nothing to keep."""
    *_, end = world.engine.generates(ask(world, [user("q")]), "")
    (answer,) = world.tells(_cancelled(end))
    assert isinstance(answer, CallAnswered) and answer.error is not None and answer.error.code == "client_gone"
    ready = world.ends()
    assert (ready.num_sampled, ready.num_undelivered, ready.num_roots) == (0, 0, 0)


def _cancelled(end: object) -> GenerationEnded:
    assert isinstance(end, GenerationEnded)
    return end.model_copy(update={"finish": GenerationFinish.CANCELLED})


def test_the_same_call_after_one_that_was_cancelled_is_a_sibling(world: World):
    """The client came back too late, and asked again."""
    first = world.turn([user("p")], "first")
    history = [user("p"), first.message, user("q")]
    request = ask(world, history)
    *sampled, end = world.engine.generates(request, "seve")
    for event in [*sampled, _cancelled(end)]:
        world.tells(event)
    again = ask(world, history)
    assert (again.parent, list(again.suffix)) == (first.call, list(request.suffix))
    world.answers(again, "seven")
    (sample,) = world.ends().samples
    assert len(sample.spans) == 2


def test_a_raw_prompt_is_encoded_as_it_is(world: World):
    """No template, no special tokens beyond those written; its answer is text, markers and all."""
    request = ask(world, prompt("<|im_start|>once upon"))
    assert list(request.suffix) == ids_of("<|im_start|>once upon") and request.parent is None
    answer = world.answers(request, f" a time {THINK}x{THOUGHT}{TOOL_CALL}")
    assert answer.message == {"role": "assistant", "content": f" a time {THINK}x{THOUGHT}{TOOL_CALL}"}
    assert answer.finish_reason == "stop"
    replays(world)


def test_an_empty_raw_prompt_is_refused(world: World):
    """An engine has nothing to go on from."""
    (answer,) = world.tells(world.agent.asks(prompt("")))
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert (answer.error.status, answer.error.code) == (400, "invalid_request_error")


def test_a_raw_prompt_goes_on_from_the_turn_it_begins_with(world: World):
    """Its ids are those that were sampled, however an encoder would cut the text; only the rest is encoded."""
    first = world.answers(ask(world, prompt("a b")), ids_of(" c d"))
    second = ask(world, prompt("a b c d e"))
    assert (second.parent, list(second.suffix)) == (first.call, ids_of(" e"))
    longer = world.answers(second, " f", truncated=True)
    third = ask(world, prompt("a b c d e f g"))
    assert (third.parent, list(third.suffix)) == (longer.call, ids_of(" g"))
    world.answers(third, " h")
    (sample,) = world.ends().samples
    assert tokenizer().decode(list(sample.token_ids)) == "a b c d e f g h<|im_end|>" and len(sample.spans) == 3
    replays(world)


@pytest.mark.parametrize(
    ("further", "suffix"),
    [("a b c<|im_end|> d", " d"), ("a b c d", " d"), ("a b c", "")],
)
def test_the_end_of_turn_token_of_a_raw_turn_may_be_written_or_not(world: World, further: str, suffix: str):
    """Its client never saw it."""
    first = world.answers(ask(world, prompt("a b")), " c")
    second = ask(world, prompt(further))
    assert (second.parent, list(second.suffix)) == (first.call, ids_of(suffix))


def test_a_raw_prompt_after_a_stop_text_goes_on_only_where_it_repeats_it(world: World):
    """The stop's tokens are in the turn; a prompt that leaves them out is another one."""
    first = stopped(world, ask(world, prompt("a"), stop=("\nObs:",)), " b\nObs:")
    assert (first.message["content"], first.stop_sequence) == (" b", "\nObs:")
    assert ask(world, prompt("a b\nObs: 7")).parent == first.call
    other = ask(world, prompt("a b and 7"))
    assert (other.parent, list(other.suffix)) == (None, ids_of("a b and 7"))


def test_a_raw_prompt_with_another_text_is_a_root_and_no_fork(world: World):
    """Exact or new; also a conversation's text is none of its turns."""
    world.answers(ask(world, prompt("a b")), " c")
    world.turn([user("a b")], " c")
    other = ask(world, prompt("a bc"))
    assert other.parent is None
    world.answers(other, "!")
    ready = world.ends()
    assert (ready.num_roots, ready.num_forks) == (3, 0)


raw_texts = st.text(alphabet="ab \n漢", min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(raw_texts, raw_texts, st.booleans()), min_size=1, max_size=6))
def test_raw_turns_of_one_growing_text_are_one_path(turns: list[tuple[str, str, bool]]):
    """Whatever the texts, each token is fed and sampled once, and all is said again by a fresh manager."""
    world, text, parent = World(), "", None
    for new, said, is_cut in turns:
        request = ask(world, prompt(text + new))
        assert request.parent == parent and list(request.suffix) == ids_of(new)
        answer = world.answers(request, said, truncated=is_cut)
        text, parent = text + new + str(answer.message["content"]), answer.call
    (sample,) = world.ends().samples
    assert len(sample.spans) == len(turns)
    replays(world)
