"""Which turn a request goes on from, however the client writes its history down.

echoed verbatim                       found by what it says
arguments re-serialised, null content found: it means the same
tool-call ids kept                    found by id, also when the text was changed
anything before it changed            not found: what the engine saw is no longer what is asked
other tools offered                   not found
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate
from seamlessflow_trajectory_manager.rendering.tool_calls import parse_call, parse_text
from seamlessflow_trajectory_manager.trajectory.message_identity import (
    canonical_arguments,
    identity_of,
    pointers_in,
    tool_call_id,
)
from tests.domain.trajectory_builders import CALC, World, ids_of, tokenizer, user

CALL = '<tool_call>{"name": "calc", "arguments": {"b": 2, "a":  1}}</tool_call>'
SYSTEM = {"role": "system", "content": "be brief"}


def parent_of(world: World, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str | None:
    (request,) = world.tells(world.agent.asks(messages, tools))
    return getattr(request, "parent", None)


@pytest.fixture
def world() -> World:
    return World()


def test_an_echoed_answer_is_found_by_what_it_says(world: World):
    """The ordinary next turn of a chat."""
    answer = world.turn([SYSTEM, user("q")], "seven")
    assert parent_of(world, [SYSTEM, user("q"), answer.message, user("sure?")]) == answer.call


def test_only_new_tokens_are_sent(world: World):
    """The suffix begins behind the last sampled token."""
    answer = world.turn([user("q")], "seven")
    (request,) = world.tells(world.agent.asks([user("q"), answer.message, user("r")]))
    assert tokenizer().decode(list(request.suffix)) == "\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
    assert request.parent_tokens == len(world.engine.fed[answer.call]) + len(ids_of("seven<|im_end|>"))


@pytest.mark.parametrize(
    "rewritten",
    [
        {"arguments": '{"a":1,"b":2}'},
        {"arguments": '{ "b": 2, "a": 1 }', "content": ""},
        {"id": "fc_1", "content": None},
        {"reasoning_content": "hm", "refusal": None},
        {"content": "some clients put words here"},
    ],
)
def test_a_tool_turn_is_found_however_it_is_written(world: World, rewritten: dict[str, Any]):
    """Re-serialised arguments, dropped ids, other fields: by id, or else by meaning."""
    answer = world.turn([user("1+2?")], CALL, tools=[CALC])
    (call,) = answer.message["tool_calls"]
    arguments = rewritten.pop("arguments", call["function"]["arguments"])
    identity = rewritten.pop("id", call["id"])
    echoed = {"id": identity, "type": "function", "function": {"name": "calc", "arguments": arguments}}
    history = [user("1+2?"), {"role": "assistant", "tool_calls": [echoed], **rewritten}]
    result = {"role": "tool", "tool_call_id": identity, "content": "3"}
    assert parent_of(world, [*history, result], [CALC]) == answer.call


def test_ids_tell_apart_two_turns_that_say_the_same(world: World):
    """Parallel calls with one prompt may be answered with one text; the id says which one is continued."""
    first, second = (world.turn([user("q")], CALL, tools=[CALC]) for _ in range(2))
    assert parent_of(world, [user("q"), second.message, user("r")], [CALC]) == second.call
    assert parent_of(world, [user("q"), first.message, user("r")], [CALC]) == first.call


@pytest.mark.parametrize("history", [[{"role": "system", "content": "be long"}, user("q")], [SYSTEM, user("p")], [user("q")]])
def test_a_turn_is_not_found_behind_a_changed_history(world: World, history: list[dict[str, Any]]):
    """Its tokens were sampled behind other ones; reusing them would feed the engine what nobody asked."""
    answer = world.turn([SYSTEM, user("q")], CALL, tools=[CALC])
    assert parent_of(world, [*history, answer.message, user("r")], [CALC]) is None
    call = world.manager.call(world.agent.episode, "c1")
    assert call is not None and call.cause is not None


def test_other_tools_are_another_conversation(world: World):
    """The tools stand in the prompt."""
    answer = world.turn([user("q")], "seven", tools=[CALC])
    assert parent_of(world, [user("q"), answer.message, user("r")]) is None


def test_a_rewritten_turn_branches_behind_the_last_true_one(world: World):
    """What comes before the rewritten turn is still an exact prefix; the rest is context. It counts as a fork."""
    first = world.turn([user("q")], "seven")
    history = [user("q"), first.message, user("r")]
    world.turn(history, "eight")
    assert parent_of(world, [*history, {"role": "assistant", "content": "nine"}, user("s")]) == first.call
    assert (world.ends().num_roots, world.ends().num_forks) == (1, 0)  # not sampled, so not in the tree
    other = World()
    first = other.turn([user("q")], "seven")
    other.turn([user("q"), first.message, user("r"), {"role": "assistant", "content": "nine"}, user("s")], "ten")
    assert other.ends().num_forks == 1


def test_examples_in_the_first_prompt_are_no_fork(world: World):
    """Few-shot prompts hold assistant messages that nobody sampled."""
    world.turn([user("1+1"), {"role": "assistant", "content": "2"}, user("1+2")], "3")
    assert world.ends().num_forks == 0


def test_a_text_turn_is_found_by_what_the_gateway_read_out_of_item_ids(world: World):
    """Responses clients bring back ids for every item; so one of two turns that say the same is told, or a trimmed one."""
    first, second = (world.turn([user("q")], "seven") for _ in range(2))
    for answer, text in ((first, "seven"), (second, "seven"), (second, "seven\n")):
        echoed = {"role": "assistant", "content": text, "turn": answer.call}
        assert parent_of(world, [user("q"), echoed, user("r")]) == answer.call


def test_only_what_is_new_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch):
    """However long a conversation is, each request costs its new messages; one that starts anew costs all of its own."""
    looked: list[Any] = []

    def identity(message: Any) -> bytes:
        looked.append(message)
        return identity_of(message)

    monkeypatch.setattr("seamlessflow_trajectory_manager.trajectory.prefix_match.identity_of", identity)
    history, counts = [user("q")], []
    for number in range(8):
        answer = world.turn(history, "seven")
        counts.append(len(looked))
        looked.clear()
        history = [*history, answer.message, user(f"{number}?")]
    assert counts == [2] + [3] * 7  # what is new was asked, and what was answered
    world.turn([SYSTEM, *history], "seven")
    assert len(looked) == len(history) + 2


@given(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.none(), max_size=4))
def test_canonical_arguments_forget_only_form(arguments: dict[str, Any]):
    """Order and spacing do not count; a map and its JSON are the same."""
    import json

    backwards = json.dumps(dict(reversed(arguments.items())), indent=3, ensure_ascii=True)
    assert canonical_arguments(backwards) == canonical_arguments(arguments) == canonical_arguments(json.dumps(arguments))


@given(st.text(alphabet="abc_1", min_size=1), st.integers(min_value=0, max_value=99))
def test_a_tool_call_id_points_back(call: str, index: int):
    """Whatever characters a call's id has."""
    assert list(pointers_in({"tool_calls": [{"id": tool_call_id(call, index)}, {"id": "toolu_9"}, {}]})) == [call]


def test_messages_that_mean_something_else_differ():
    """Role, text, tool name, arguments, and which call a result belongs to."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    different = [
        user("a"),
        user("b"),
        {"role": "system", "content": "a"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "content": "a", "tool_call_id": "1"},
        {"role": "tool", "content": "a", "tool_call_id": "2"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
    ]
    assert len({identity_of(message) for message in different}) == len(different)
    assert identity_of(user("ab")) == identity_of({"role": "user", "content": [{"text": "a"}, {"text": "b"}]})


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud83d"}', "[" * 5000, '{"a": ' * 5000], ids=["half a pair", "deep list", "deep map"]
)
def test_arguments_that_cannot_be_read_or_encoded_are_still_arguments(arguments: str):
    """An agent's history and a model's own turn may hold them: they have an identity, and templates get them as text."""
    call = {"id": "x", "type": "function", "function": {"name": "calc", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    assert identity_of(message) == identity_of(dict(message))
    shown = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}", {}).render(
        [message], None, add_generation_prompt=False
    )
    shown.encode()
    assert shown == arguments


@pytest.mark.parametrize("block", ['{"name": "f\\ud83d", "arguments": {}}', '{"name": "f", "arguments": "\\ud83d"}'])
def test_a_call_that_could_not_be_handed_on_is_text(block: str):
    """Half a surrogate pair, escaped, as a model may well sample it."""
    assert parse_call(block) is None
    assert parse_text(f"<tool_call>{block}</tool_call>", with_tools=True).num_malformed == 1
