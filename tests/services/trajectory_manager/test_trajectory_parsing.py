"""What a turn says: golden cases of tool calls, well-formed and not.

one block, valid                      a tool call, arguments exactly as sampled
text and blocks                       text is content, without the white space at its end
a broken block, or one never closed   raw content; the good ones still count
no tools offered                      whatever it looks like, it is text
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_trajectory_manager.rendering.tool_calls import ToolCall, parse_call, parse_text

CALL = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
MALFORMED = [
    "",
    "calc(3+4)",
    "{}",
    "[]",
    '{"name": "calc"}',
    '{"arguments": {}}',
    '{"name": "", "arguments": {}}',
    '{"name": 3, "arguments": {}}',
    '{"name": "calc", "arguments": 3}',
    '{"name": "calc", "arguments": {"a": 1}',
    '{"name": "calc", "arguments": {}} extra',
    "{'name': 'calc', 'arguments': {}}",
    '{"name": "calc" "arguments": {}}',
    '{"name": "calc", "arguments": {},}',
    '{3: "calc"}',
    "{" * 5000,
]


def test_arguments_are_the_very_text_that_was_sampled():
    """Clients get no re-serialised JSON: what the model wrote is what it sees again."""
    parsed = parse_text(
        '<tool_call>{"name": "calc", "arguments": {"expression":  "3+4", "n":1.0}}</tool_call>', with_tools=True
    )
    assert parsed.tool_calls == (ToolCall("calc", '{"expression":  "3+4", "n":1.0}'),)
    assert parsed.content == "" and parsed.num_malformed == 0


def test_text_around_calls_is_content():
    """A model may think aloud before it calls; several calls are parallel calls."""
    text = 'Let me see.\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
    text += '<tool_call>{"arguments": "x", "name": "b"}</tool_call>'
    parsed = parse_text(text, with_tools=True)
    assert parsed.content == "Let me see."
    assert parsed.tool_calls == (ToolCall("a", "{}"), ToolCall("b", "x"))


@pytest.mark.parametrize("block", MALFORMED)
def test_a_malformed_call_comes_back_raw(block: str):
    """The turn is kept, and the agent sees what was said."""
    text = f"hm <tool_call>{block}</tool_call>"
    parsed = parse_text(text, with_tools=True)
    assert parse_call(block) is None
    assert (parsed.content, parsed.tool_calls, parsed.num_malformed) == (text, (), 1)


def test_a_call_that_is_never_closed_is_content():
    """As after a turn that ran out of budget."""
    parsed = parse_text('<tool_call>{"name": "calc", "arg', with_tools=True)
    assert parsed.content == '<tool_call>{"name": "calc", "arg' and parsed.num_malformed == 1


def test_a_good_call_beside_a_broken_one_is_made():
    """One mistake does not undo the other call."""
    parsed = parse_text('<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>nonsense</tool_call>', with_tools=True)
    assert parsed.tool_calls == (ToolCall("a", "{}"),)
    assert parsed.content == "<tool_call>nonsense</tool_call>" and parsed.num_malformed == 1


def test_without_tools_everything_is_text():
    """Nobody offered a tool, so nobody would know what to do with a call."""
    text = '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'
    assert parse_text(text, with_tools=False).content == text


def test_reasoning_is_told_apart():
    """What stands between think tags is reasoning, not content."""
    parsed = parse_text("<think>\nhm\n</think>\n\n7", with_tools=False)
    assert (parsed.reasoning, parsed.content) == ("hm", "7")


def test_thoughts_that_are_not_closed_are_all_there_is():
    """As after a turn that ran out of budget: they are no content."""
    parsed = parse_text("<think>\nhm <tool_call>{}", with_tools=True)
    assert (parsed.reasoning, parsed.content, parsed.num_malformed) == ("hm <tool_call>{}", "", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("hm\n</think>\n\n7", ("hm", "7")), ("<think>hm</think>7", ("hm", "7")), ("hm", ("hm", "")), ("", ("", ""))],
)
def test_thoughts_may_be_opened_by_the_prompt(text: str, expected: tuple[str, str]):
    """Models that always think do not open them themselves."""
    parsed = parse_text(text, with_tools=False, is_thinking=True)
    assert (parsed.reasoning, parsed.content) == expected


@pytest.mark.parametrize(("before", "content"), [("  a \n", "  a"), (" \n", ""), ("", "")])
def test_only_white_space_before_calls_is_dropped(before: str, content: str):
    """What is at the beginning stays, so that it could be shown while the rest was sampled."""
    assert parse_text(before + CALL, with_tools=True).content == content


@given(st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(), st.lists), max_size=4), st.text(min_size=1))
def test_every_valid_call_is_found(arguments: dict[str, object], name: str):
    """Whatever the arguments are, the text between the tags gives them back."""
    written = json.dumps(arguments)
    call = parse_call(json.dumps({"id": 1, "name": name})[:-1] + f', "arguments": {written}}}')
    assert call == ToolCall(name, written)


@given(st.text(alphabet='<tool_cal>/{}" :,namerguts\n', max_size=80))
def test_no_text_makes_the_parser_raise(text: str):
    """Whatever a model samples, there is an answer; without calls it is the text itself."""
    parsed = parse_text(text, with_tools=True)
    assert parsed.tool_calls or parsed.reasoning is not None or parsed.content == text
