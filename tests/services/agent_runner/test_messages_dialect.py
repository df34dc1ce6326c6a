"""Anthropic messages without a server: what bodies mean, what answers look like, and that an answer comes back as itself.

plain history            the chat completions messages that mean it
cut differently          the same messages
cannot be answered       400 that says what to change
any JSON at all          one or the other
any answer               whole = its events put together; echoed = the turn as it was stored
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seamlessflow.contracts import CallAnswered, Usage
from seamlessflow_agent_runner.gateway.api_errors import ApiError, bad_request
from seamlessflow_agent_runner.gateway.dialects.anthropic_answer import AnthropicMessages, input_of
from seamlessflow_agent_runner.gateway.dialects.anthropic_request import estimated_tokens, parse_messages
from seamlessflow_agent_runner.gateway.dialects.base import Frame, ParsedRequest
from seamlessflow_agent_runner.gateway.sessions import digest
from seamlessflow_trajectory_manager.rendering.tool_calls import Parsed, ToolCall
from seamlessflow_trajectory_manager.trajectory.call_answers import message_of, too_long
from seamlessflow_trajectory_manager.trajectory.message_identity import canonical_arguments, identity_of, pointers_in
from tests.services.agent_runner.streams import streamed

CALL = "c0123456789abcdef"
QUESTION = {"role": "user", "content": "3 + 4?"}
HELLO = {"model": "m", "max_tokens": 64, "messages": [QUESTION]}
CALC = {"name": "calc", "description": "sums", "input_schema": {"type": "object"}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": f"seamlessflow-{CALL}"}
TOOL_USE = {"type": "tool_use", "id": f"call_{CALL}_0", "name": "calc", "input": {"b": 4, "a": 3}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": f"call_{CALL}_0", "content": "7"}
TEXT_RESULT = {**TOOL_RESULT, "content": [{"type": "text", "text": "7"}]}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def asked(*messages: Any, **fields: Any) -> ParsedRequest:
    return parse_messages(json.dumps({**HELLO, "messages": messages or HELLO["messages"], **fields}).encode())


def test_a_history_means_what_it_says_in_the_chat_completions_form() -> None:
    """Thinking, text and tools are one turn; results are messages of their own; words after them are the user's."""
    turn = said("assistant", THINKING, text("Let me see."), TOOL_USE)
    results = said("user", TOOL_RESULT, {**TOOL_RESULT, "content": "no", "is_error": True}, text("go on"))

    request = asked(QUESTION, turn, results, system="be brief", tools=[CALC], tool_choice={"type": "auto"})

    function = {"name": "calc", "arguments": '{"b": 4, "a": 3}'}
    assert request.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "3 + 4?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": f"call_{CALL}_0", "type": "function", "function": function}],
            "turn": CALL,
        },
        {"role": "tool", "tool_call_id": f"call_{CALL}_0", "content": "7"},
        {"role": "tool", "tool_call_id": f"call_{CALL}_0", "content": "Error: no"},
        {"role": "user", "content": "go on"},
    )
    offered = {"name": "calc", "description": "sums", "parameters": {"type": "object"}}
    assert request.tools == ({"type": "function", "function": offered},)
    assert (request.tool_choice, request.max_tokens, request.stream) == ("auto", 64, False)


SAME: dict[str, list[list[Any]]] = {
    "a text or a block of it": [
        [QUESTION],
        [said("user", text("3 + 4?", cache_control={"type": "ephemeral"}))],
    ],
    "results and words, in one message or two": [
        [QUESTION, said("assistant", TOOL_USE), said("user", TOOL_RESULT, text("go on"))],
        [QUESTION, said("assistant", TOOL_USE), said("user", TOOL_RESULT), said("user", text("go on"))],
        [QUESTION, said("assistant", TOOL_USE), said("user", TEXT_RESULT), said("user", text("go on"))],
    ],
    "a turn block by block": [
        [QUESTION, said("assistant", THINKING, text("a b"), TOOL_USE), said("user", TOOL_RESULT)],
        [
            QUESTION, said("assistant", THINKING), said("assistant", text("a "), text("b")),
            said("assistant", TOOL_USE), said("user", TOOL_RESULT),
        ],
    ],
    "words block by block": [
        [said("user", text("a"), text("b"))],
        [said("user", text("a")), said("user", text("")), said("user", text("b"))],
        [{"role": "user", "content": "a\n\nb"}],
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_the_same_conversation_comes_out_the_same_however_it_is_cut(case: str) -> None:
    """Clients move cache marks, merge neighbours and split them again; the turn must be found all the same."""
    first, *others = (asked(*messages).messages for messages in SAME[case])

    assert all(other == first for other in others)


def test_what_differs_with_each_request_is_dropped_from_the_system_prompt() -> None:
    """Claude Code's billing header would make a new root of every call."""
    systems = [[text(f"x-anthropic-billing-header: cch={number};"), text("be brief"), text("be kind")] for number in (1, 2)]

    assert asked(system=systems[0]).messages == asked(system=systems[1]).messages
    assert asked(system=systems[0]).messages[0] == {"role": "system", "content": "be brief\n\nbe kind"}
    assert asked(system=systems[0][:1]).messages == asked(system="").messages == asked().messages
    shared = [text("x-anthropic-billing-header: cch=3;\nbe brief"), text("be kind")]
    assert asked(system=shared).messages == asked(system=systems[0]).messages


def test_what_the_system_says_in_between_stays_where_it_was_said() -> None:
    """Anthropic's API has messages of role system among the others."""
    history = [QUESTION, said("assistant", text("7")), said("system", text("hurry")), said("user", text("go on"))]

    request = asked(*history, system="be brief")

    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "system", "user"]
    assert request.messages[3] == {"role": "system", "content": "hurry"}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "must be JSON"),
    "beyond a double": (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "beyond"),
    "no messages": ({"messages": []}, "at least one message"),
    "message is text": ({"messages": ["hi"]}, r"messages\[0\] must be an object"),
    "unknown role": ({"messages": [{"role": "tool", "content": "x"}]}, "role must be one of user, assistant"),
    "role is a list": ({"messages": [{"role": [], "content": "x"}]}, "role must be one of"),
    "no content": ({"messages": [{"role": "user"}]}, r"messages\[0\].content must be text or a list of blocks, got null"),
    "block is text": ({"messages": [said("user", "x")]}, r"content\[0\] must be an object with a type"),
    "text is a number": ({"messages": [said("user", text(7))]}, r"content\[0\].text must be text"),
    "prefill": ({"messages": [QUESTION, said("assistant", text("It is"))]}, "last message must be the user's"),
    "image": ({"messages": [said("user", IMAGE)]}, "no images"),
    "document": ({"messages": [said("user", {"type": "document"})]}, "no images, documents"),
    "image in a result": ({"messages": [said("user", {**TOOL_RESULT, "content": [IMAGE]})]}, r"content\[0\] has type .image"),
    "image in system": ({"system": [IMAGE]}, r"system\[0\] has type 'image'"),
    "result without id": ({"messages": [said("user", {"type": "tool_result"})]}, "tool_use_id must be text"),
    "tool use of the user": ({"messages": [said("user", TOOL_USE)]}, "only text and tool_result blocks"),
    "tool use without input": ({"messages": [said("assistant", {**TOOL_USE, "input": "x"})]}, "input must be an object"),
    "server's tool use": ({"messages": [said("assistant", {"type": "server_tool_use"}), QUESTION]}, "server tools"),
    "stop_sequences": ({"stop_sequences": ["\n"] * 17}, "stop_sequences must be a text or a list of at most 16"),
    "tool_choice": ({"tool_choice": ["any"]}, "tool_choice must be 'auto'"),
    "parallel tools": ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 2}}, "must be true or false"),
    "unknown tool": ({"tools": [{"type": "oracle", "name": "oracle"}]}, r"tools\[0\] has type 'oracle'"),
    "tool without schema": ({"tools": [{"name": "calc"}]}, "input_schema"),
    "tools are text": ({"tools": "calc"}, "tools must be a list"),
    "MCP servers": ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers must be left out"),
    "thread": ({"thread": {"type": "create"}}, "send all messages"),
    "compaction": ({"compaction": {"type": "summary"}}, "compaction must be left out"),
    "output format": ({"output_format": {"type": "json_schema", "schema": {}}}, "constrained decoding"),
    "output config": ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "constrained decoding"),
    "max_tokens": ({"max_tokens": 0}, "at least 1"),
    "no model": ({"model": ""}, "model must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_body_that_cannot_be_answered_is_refused_with_what_to_change(case: str) -> None:
    """400 in Anthropic's form."""
    body, words = REFUSED[case]
    raw = body if isinstance(body, bytes) else json.dumps({**HELLO, **body}).encode()

    with pytest.raises(ApiError, match=words) as refused:
        parse_messages(raw)

    assert refused.value.status == 400
    body = AnthropicMessages().error_body(refused.value)
    assert body == {"type": "error", "error": {"type": "invalid_request_error", "message": refused.value.message}}


@pytest.mark.parametrize(
    "harmless",
    [
        {"temperature": 0.1, "top_p": 0.5, "top_k": 3}, {"metadata": {"user_id": "{}"}}, {"stop_sequences": []},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"context_management": {"edits": []}}, {"tools": []},
        {"output_config": {"effort": "high"}}, {"betas": ["x"]}, {"service_tier": "auto"}, {"mcp_servers": []}, {"unknown": 1},
        {"cache_control": {"type": "ephemeral"}}, {"system": []}, {"max_tokens": None}, {"container": None},
    ],
)  # fmt: skip
def test_fields_that_change_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    """Clients send their defaults; an agent must not break on them."""
    assert asked(**harmless).messages == (QUESTION,)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"),
        (405, "invalid_request_error"), (409, "conflict_error"), (413, "request_too_large"), (500, "api_error"),
    ],
)  # fmt: skip
def test_an_error_has_the_type_that_goes_with_its_status(status: int, kind: str) -> None:
    """Agents look at either."""
    assert AnthropicMessages().error_body(ApiError(status, "no", code="x"))["error"] == {"type": kind, "message": "no"}


def test_an_over_long_prompt_is_said_in_the_words_that_make_agents_compact() -> None:
    """With both numbers as the manager gives them, and still recognisable should its words change."""
    manager = ApiError.of(too_long(most=2048, got=9000))
    reworded = bad_request("9000 is too much", code="context_length_exceeded")

    messages = [AnthropicMessages().error_body(error)["error"]["message"] for error in (manager, reworded)]

    assert messages == ["prompt is too long: 9000 tokens > 2048 maximum", "prompt is too long: 9000 is too much"]


def test_tokens_are_estimated_from_all_text() -> None:
    """A quarter of its bytes, rounded up; tools and history count as well."""
    assert estimated_tokens(asked({"role": "user", "content": "12345"})) == 2
    assert estimated_tokens(asked({"role": "user", "content": "é" * 4})) == 2
    assert estimated_tokens(asked(tools=[CALC], system="be brief")) > estimated_tokens(asked(tools=[CALC])) > 6


WORDS = st.text(max_size=8)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
KINDS = st.sampled_from(["text", "thinking", "tool_use", "tool_result", "redacted_thinking", "image", "auto", "custom"])
KEYS = st.sampled_from(["type", "text", "content", "role", "id", "name", "input", "tool_use_id", "signature", "input_schema"])
ANYTHING = st.recursive(
    VALUES | KINDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)
INPUTS = st.dictionaries(WORDS, ANYTHING, max_size=3)
BLOCKS = st.fixed_dictionaries(
    {"type": KINDS},
    optional={
        "text": WORDS, "thinking": WORDS, "signature": WORDS | st.just(f"seamlessflow-{CALL}"), "id": WORDS, "name": WORDS,
        "input": INPUTS, "tool_use_id": WORDS, "content": ANYTHING, "is_error": st.booleans(),
    },
)  # fmt: skip
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": WORDS | st.lists(BLOCKS, max_size=3) | ANYTHING}
)
BODIES = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(TURNS, max_size=4)},
    optional={
        "system": WORDS | st.lists(BLOCKS, max_size=2),
        "tools": st.lists(st.fixed_dictionaries({"name": WORDS}) | ANYTHING, max_size=2),
        "tool_choice": ANYTHING, "max_tokens": VALUES, "stream": VALUES, "output_config": ANYTHING, "stop_sequences": ANYTHING,
    },
)  # fmt: skip


@given(st.binary(max_size=20) | (BODIES | ANYTHING).map(lambda body: json.dumps(body).encode()))
def test_any_body_is_understood_or_refused(raw: bytes) -> None:
    """What is understood can be sent on, matched and counted."""
    try:
        request = parse_messages(raw)
    except ApiError as refused:
        assert refused.status == 400 and json.dumps(AnthropicMessages().error_body(refused))
        return
    assert request.messages[-1]["role"] != "assistant"
    assert [digest(content) for content in (*request.messages, *(request.tools or ()))]
    assert [(identity_of(message), *pointers_in(message)) for message in request.messages]
    assert estimated_tokens(request) >= 0


ARGUMENTS = WORDS | ANYTHING.map(json.dumps) | INPUTS.map(json.dumps)
ANSWERS = st.builds(
    Parsed,
    content=WORDS,
    tool_calls=st.lists(st.builds(ToolCall, name=WORDS, arguments=ARGUMENTS), max_size=3).map(tuple),
    reasoning=st.none() | WORDS,
)


@given(ANSWERS)
def test_an_answer_that_is_echoed_is_the_turn_as_it_was_stored(parsed: Parsed) -> None:
    """Text, reasoning, tool calls and their ids; the signature points back at the call where there is one."""
    stored = message_of(parsed, CALL)
    body = json.loads(json.dumps(AnthropicMessages().whole(frame(), answer_of(stored)), allow_nan=False))

    _, echoed, _ = asked(QUESTION, {"role": "assistant", "content": body["content"]}, QUESTION).messages

    assert identity_of(echoed) == identity_of(stored)
    assert echoed.get("reasoning_content") == (parsed.reasoning or None)
    assert ids_of(echoed) == ids_of(stored)
    assert set(pointers_in(echoed)) == ({CALL} if parsed.tool_calls or parsed.reasoning else set())


@given(ANSWERS, st.booleans())
def test_the_events_of_an_answer_join_to_its_whole(parsed: Parsed, thinks: bool) -> None:
    """Whichever way a client asks, it is told the same; thoughts only where it asked for them."""
    asking, answer = frame(thinks=thinks), answer_of(message_of(parsed, CALL))

    whole = AnthropicMessages().whole(asking, answer)

    assert joined(asking, answer) == whole
    assert any(block["type"] == "thinking" for block in whole["content"]) == (thinks and bool(parsed.reasoning))


@pytest.mark.parametrize(("kind", "texts"), [("thinking", ("so", "")), ("text", ("", "so"))])
def test_while_a_block_is_open_a_sign_of_life_is_text_that_adds_nothing(kind: str, texts: tuple[str, str]) -> None:
    """Claude Code's idle timer (five minutes) is not reset by pings."""
    stream = AnthropicMessages().stream(frame())
    stream.opening()
    ping, _, idle = stream.idle(), stream.more(*texts), stream.idle()

    assert json.loads(ping.split(b"data: ")[1]) == {"type": "ping"}
    assert json.loads(idle.split(b"data: ")[1])["delta"] == {"type": f"{kind}_delta", kind: ""}


@given(ARGUMENTS)
@example('{"n": 1000000000000000000000000000000}')
@example('{"n": 1e999}')
@example('{"n": NaN}')
@example('{"n": "\\ud800"}')
@example('{"_raw_arguments": "x"}')
@example('{"_raw_arguments": 5}')
@example('{"a": 1, "a": 2}')
@example("[1]")
@example("")
def test_arguments_of_any_kind_become_an_input_and_come_back(arguments: str) -> None:
    """An input is always an object that a request may carry; what is none is given raw, and comes back as it was."""
    given_input = json.loads(json.dumps(input_of(arguments), allow_nan=False))

    (call,) = asked(QUESTION, said("assistant", {**TOOL_USE, "input": given_input}), QUESTION).messages[1]["tool_calls"]

    assert canonical_arguments(call["function"]["arguments"]) == canonical_arguments(arguments)


def ids_of(message: Any) -> list[str]:
    return [call["id"] for call in message.get("tool_calls", ())]


def frame(*, thinks: bool = True) -> Frame:
    return Frame(CALL, 1, asked(thinking={"type": "adaptive" if thinks else "disabled"}))


def answer_of(message: dict[str, object]) -> CallAnswered:
    finish = "tool_calls" if message.get("tool_calls") else "length"
    usage = Usage(prompt_tokens=5, completion_tokens=7)
    return CallAnswered(run="r", episode="e", call=CALL, message=message, finish_reason=finish, usage=usage)


def joined(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """What a client makes of the events."""
    raw = streamed(AnthropicMessages(), frame, answer).decode()
    lines = [each.split("\n") for each in raw.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name.removeprefix("event: ") for name, _ in lines] == [each["type"] for each in events]
    assert events[-1] == {"type": "message_stop"}
    message = events[0]["message"]
    for each in events[1:-1]:
        match each["type"]:
            case "content_block_start":
                message["content"].append(each["content_block"])
                written = ""
            case "content_block_delta" if each["delta"]["type"] == "input_json_delta":
                written += each["delta"]["partial_json"]
                # Only the last piece completes it.
                message["content"][each["index"]]["input"] = written
            case "content_block_delta":
                ((key, piece),) = ((key, piece) for key, piece in each["delta"].items() if key != "type")
                message["content"][each["index"]][key] += piece
            case "content_block_stop" if message["content"][each["index"]]["type"] == "tool_use":
                message["content"][each["index"]]["input"] = json.loads(written)
            case "message_delta":
                message |= {**each["delta"], "usage": each["usage"]}
    return message
