"""The responses dialect without a server: what bodies mean, which are refused, and what comes back of an answer.

items in a row                                    one turn
reasoning, message, function calls                merged
calls of one turn, outputs between them           merged by their ids
ids of two turns, or a second message             two turns
foreign ids, no ids                               merged by their order alone
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from openai.types.responses import Response

from seamlessflow.contracts import CallAnswered, Usage
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.dialects.base import Frame, ParsedRequest
from seamlessflow_agent_runner.gateway.dialects.openai_chat import checked_messages, checked_tools, parse_chat
from seamlessflow_agent_runner.gateway.dialects.openai_responses_answer import Responses, output_items
from seamlessflow_agent_runner.gateway.dialects.openai_responses_request import (
    ECHOED,
    ROLES,
    call_in,
    item_id,
    messages_in,
    parse_responses,
    sealed,
    unsealed,
)
from seamlessflow_agent_runner.gateway.previous_responses import PreviousResponses
from seamlessflow_trajectory_manager.rendering.tool_calls import Parsed, ToolCall
from seamlessflow_trajectory_manager.trajectory.call_answers import message_of
from seamlessflow_trajectory_manager.trajectory.message_identity import identity_of, pointers_in
from tests.services.agent_runner.streams import streamed

HELLO = {"model": "m", "input": "hello"}
IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]
FILE = [{"type": "function_call_output", "call_id": "call_c1_0", "output": [{"type": "input_file", "file_id": "f"}]}]

REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "must be JSON"),
    "no model": ({"input": "hello"}, "model must be"),
    "no input": ({"model": "m"}, "input must be text"),
    "no items": ({**HELLO, "input": []}, "at least one item"),
    "only reasoning": ({**HELLO, "input": [{"type": "reasoning", "summary": []}]}, "besides reasoning"),
    "item is text": ({**HELLO, "input": ["hi"]}, r"input\[0\] must be an object"),
    "unknown role": ({**HELLO, "input": [{"role": "bot", "content": "x"}]}, "must be one of system"),
    "no content": ({**HELLO, "input": [{"role": "user"}]}, r"input\[0\].content must be text"),
    "image": ({**HELLO, "input": IMAGE}, "no images, audio or files"),
    "file as output": ({**HELLO, "input": FILE}, "no images, audio or files"),
    "built-in tool's item": ({**HELLO, "input": [{"type": "web_search_call", "id": "ws_1"}]}, "'web_search_call'"),
    "nothing": ({**HELLO, "input": [{}]}, "id of an item"),
    "reference to nobody's item": ({**HELLO, "input": [{"type": "item_reference", "id": "x"}]}, "id of an item"),
    "call without name": ({**HELLO, "input": [{"type": "function_call", "call_id": "a"}]}, "name must be text"),
    "output without call_id": ({**HELLO, "input": [{"type": "function_call_output", "output": ""}]}, "call_id must be"),
    "instructions": ({**HELLO, "instructions": [{}]}, "instructions must be text"),
    "conversation": ({**HELLO, "conversation": "conv_1"}, "send the whole input"),
    "foreign response": ({**HELLO, "previous_response_id": "resp_68af"}, "send the whole input"),
    "prompt": ({**HELLO, "prompt": {"id": "p"}}, "prompt is not supported"),
    "background": ({**HELLO, "background": True}, "kept alive"),
    "compaction": ({**HELLO, "context_management": [{"type": "compaction"}]}, "context_length_exceeded"),
    "truncation": ({**HELLO, "truncation": "auto"}, "shorten the input"),
    "json_schema": ({**HELLO, "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, "constrained decoding"),
    "parallel_tool_calls": ({**HELLO, "parallel_tool_calls": 0.5}, "parallel_tool_calls must be true or false"),
    "tool_choice": ({**HELLO, "tool_choice": {}}, "tool_choice must be 'auto'"),
    "unknown tool": ({**HELLO, "tools": [{"type": "oracle"}]}, "of type function and namespace"),
    "nameless tool": ({**HELLO, "tools": [{"type": "function"}]}, "name of the function"),
    "nameless namespace": ({**HELLO, "tools": [{"type": "namespace", "tools": []}]}, "name of the namespace"),
    "namespace of text": ({**HELLO, "tools": [{"type": "namespace", "name": "n", "tools": "f"}]}, r"tools\[0\].tools must be"),
    "namespace in another": ({**HELLO, "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}]},
                             r"tools\[0\].tools\[0\] has type 'namespace'"),
    "tools are text": ({**HELLO, "tools": "calc"}, "tools must be a list"),
    "parameters": ({**HELLO, "tools": [{"type": "function", "name": "f", "parameters": []}]}, "JSON schema"),
    "include": ({**HELLO, "include": "all"}, "include must be a list"),
    "stream": ({**HELLO, "stream": "yes"}, "true or false"),
    "max_output_tokens": ({**HELLO, "max_output_tokens": 0}, "at least 1"),
}  # fmt: skip


def parsed(**changed: Any) -> ParsedRequest:
    return parse_responses(json.dumps({**HELLO, **changed}).encode())


@pytest.mark.parametrize("case", REFUSED)
def test_a_body_that_cannot_be_answered_is_refused_with_what_to_change(case: str) -> None:
    """400 that names the field."""
    body, words = REFUSED[case]
    with pytest.raises(ApiError, match=words) as caught:
        parse_responses(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "harmless",
    [
        {"temperature": 0.1, "top_p": 0.5}, {"store": True}, {"metadata": {"a": "b"}}, {"truncation": "disabled"},
        {"reasoning": {"effort": "high", "summary": "auto"}}, {"prompt_cache_key": "k", "service_tier": "auto", "user": "u"},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"tool_choice": "auto", "parallel_tool_calls": True},
        {"include": ["message.output_text.logprobs"]}, {"background": False}, {"tools": []}, {"instructions": ""},
        {"previous_response_id": None, "conversation": None}, {"stream_options": {}}, {"unknown": 1},
    ],
)  # fmt: skip
def test_fields_that_change_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    """Clients send their defaults; an agent must not break on them."""
    assert parsed(**harmless).messages == ({"role": "user", "content": "hello"},)


@pytest.mark.parametrize("nothing", [{}, {"input": None}, {"input": []}])
def test_behind_an_earlier_answer_nothing_needs_to_be_said(nothing: dict[str, Any]) -> None:
    """And else something does."""
    raw = {"model": "m", **nothing}

    assert parse_responses(json.dumps({**raw, "previous_response_id": "resp_c1"}).encode()).messages == ()
    with pytest.raises(ApiError, match="at least one item"):
        parse_responses(json.dumps(raw).encode())


def test_tools_are_offered_as_by_chat_completions() -> None:
    """The same offer has the same digest, so a conversation can change the dialect."""
    tool = {"name": "calc", "description": "Calculates.", "parameters": {"type": "object"}, "strict": True}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": tool}]}
    assert parsed(tools=[{"type": "function", **tool}]).tools == parse_chat(json.dumps(body).encode()).tools
    assert parsed(tools=[{"type": "function", "name": "f", "strict": None, "parameters": None}]).tools == (
        {"type": "function", "function": {"name": "f"}},
    )


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **more}


def called(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def gave(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "7"}


USER = {"role": "user", "content": "hi"}

TURNS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "all of one turn": ([thought("h", id="rs_c1_0"), said("a", id="msg_c1_0"), called("call_c1_0")], "(h)a[call_c1_0]"),
    "foreign ids": ([thought("h", id="rs_68af"), said("a", id="msg_68"), called("x"), called("y")], "(h)a[x,y]"),
    "no ids": ([thought("h"), said("a"), called("x"), called("y"), gave("x"), gave("y")], "(h)a[x,y] x y"),
    "reasoning in parts": ([thought("g"), thought("h"), said("a")], "(g\nh)a"),
    "the message last": ([called("x"), said("a"), gave("x")], "a[x] x"),
    "an output between": ([called("call_c1_0"), gave("call_c1_0"), called("call_c1_1"), gave("call_c1_1")],
                          "[call_c1_0,call_c1_1] call_c1_0 call_c1_1"),
    "foreign, an output between": ([called("x"), gave("x"), called("y"), gave("y")], "[x] x [y] y"),
    "two turns by ids": ([said("a", id="msg_c1_0"), called("call_c2_0")], "a<c1> [call_c2_0]"),
    "two messages": ([said("a"), said("b")], "a b"),
    "the same message twice": ([said("a", id="msg_c1_0"), said("a", id="msg_c1_0")], "a<c1> a<c1>"),
    "thinking begins a turn": ([said("a"), thought("h"), said("b")], "a (h)b"),
    "somebody's call behind our turn": ([said("a", id="msg_c1_0"), called("x")], "a<c1> [x]"),
    "our call behind a message that lost its id": ([said("a"), called("call_c1_0")], "a[call_c1_0]"),
    "reasoning that led to nothing": ([thought("h"), USER], "hi"),
    "our reasoning that led to nothing": ([thought("h", id="rs_c1_0"), USER], "(h) hi"),
    "only its reasoning is pointed at": ([{"type": "item_reference", "id": "rs_c1_0"}, USER], "hi"),
    "a call in a namespace": ([called("call_c1_0", namespace="n")], "[call_c1_0]"),
    "a user between": ([called("call_c1_0"), USER, called("call_c1_1")], "[call_c1_0] hi [call_c1_1]"),
    "plain text": ([{"role": "assistant", "content": "a"}, USER], "a hi"),
    "a refusal": ([said("a", content=[{"type": "refusal", "refusal": "no"}])], "no"),
    "pointed at": ([{"id": "msg_c1_0"}, USER], "@c1 hi"),
    "a turn pointed at in parts": ([{"type": "item_reference", "id": "rs_c1_0"}, called("call_c1_0"), gave("call_c1_0")],
                                   "@c1 call_c1_0"),
    "a message behind what is pointed at": ([{"type": "item_reference", "id": "msg_c1_0"}, said("a")], "@c1 a"),
}  # fmt: skip


def drawn(message: dict[str, Any]) -> str:
    """(reasoning) content [ids of calls] <turn>; an output by its call's id; @turn where it is pointed at only."""
    if "content" not in message:
        return f"@{message['turn']}"
    if message["role"] == "tool":
        return str(message["tool_call_id"])
    reasoning = f"({message['reasoning_content']})" if "reasoning_content" in message else ""
    calls = "[" + ",".join(each["id"] for each in message["tool_calls"]) + "]" if "tool_calls" in message else ""
    pointer = f"<{message['turn']}>" if "turn" in message else ""
    return f"{reasoning}{message['content'] or ''}{calls}{pointer}"


@pytest.mark.parametrize("case", TURNS)
def test_items_become_the_turns_they_came_from(case: str) -> None:
    """See the table in the file's head."""
    items, expected = TURNS[case]
    assert " ".join(drawn(message) for message in messages_in(items)) == expected


def test_reasoning_is_read_wherever_a_client_keeps_it() -> None:
    """What we sealed, else its text, else its summary; what another server encrypted is passed over."""
    text = [{"type": "reasoning_text", "text": "text"}]
    for item, expected in (
        (thought("summary", content=text, encrypted_content=sealed("c1", "sealed")), "(sealed)a<c1>"),
        (thought("summary", content=text), "(text)a"),
        (thought("summary", encrypted_content="gAAAA"), "(summary)a"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "sf1.c1.?"}, "a"),
    ):
        assert " ".join(map(drawn, messages_in([item, said("a")]))) == expected


CALLS = st.from_regex(r"c[0-9a-f]{24}", fullmatch=True)
TOOL_CALLS = st.lists(st.builds(ToolCall, st.text(min_size=1), st.text()), max_size=3)
PARSED = st.builds(Parsed, st.text(), TOOL_CALLS.map(tuple), st.none() | st.text(min_size=1))
FINISHES = st.sampled_from(["stop", "length", "tool_calls"])


def frame_of(call: str, *, echo: dict[str, Any] | None = None) -> Frame:
    return Frame(call, 1, ParsedRequest("m", (), extra={"echo": echo or {}, "seals_reasoning": True, "namespaces": {}}))


def answered(call: str, turn: Parsed, finish: str = "stop") -> CallAnswered:
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    known = {"run": "r", "episode": "e", "call": call, "message": message_of(turn, call)}
    return CallAnswered(**known, finish_reason=finish, usage=usage)


@given(CALLS, PARSED, st.booleans(), st.booleans())
def test_an_answer_sent_back_is_the_same_message(call: str, turn: Parsed, keeps_ids: bool, puts_outputs_between: bool) -> None:
    """Also without item ids, and with each output right behind its call; with ids it points at its turn."""
    answer = answered(call, turn)
    echoed: list[dict[str, Any]] = []
    for item in json.loads(json.dumps(output_items(frame_of(call), answer))):
        echoed.append(item if keeps_ids else {key: value for key, value in item.items() if key not in ("id", "status")})
        if puts_outputs_between and item["type"] == "function_call":
            echoed.append(gave(item["call_id"]))

    assistant, *results = messages_in(echoed)

    assert identity_of(assistant) == identity_of(answer.message)
    assert assistant.get("reasoning_content") == answer.message.get("reasoning_content")
    assert all(result["role"] == "tool" for result in results)
    if keeps_ids or turn.tool_calls or turn.reasoning:
        assert set(pointers_in(assistant)) == {call}


@given(CALLS, PARSED, FINISHES)
def test_the_events_of_a_stream_join_to_the_whole_answer(call: str, turn: Parsed, finish: str) -> None:
    """Numbered from 0 without a gap, each named after its type."""
    dialect, frame, answer = Responses(), frame_of(call), answered(call, turn, finish)

    raw = streamed(dialect, frame, answer)

    blocks = [block.split("\n") for block in raw.decode().split("\n\n")[:-1]]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = dialect.whole(frame_of(call), answer)
    assert events[-1]["response"] == whole
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == whole["output"]
    for index, item in enumerate(whole["output"]):
        deltas = "".join(event["delta"] for event in events if "delta" in event and event["output_index"] == index)
        assert deltas == {"message": turn.content, "function_call": item.get("arguments"), "reasoning": ""}[item["type"]]


@given(CALLS, PARSED, FINISHES)
def test_a_body_has_the_form_the_clients_models_demand(call: str, turn: Parsed, finish: str) -> None:
    """The official package's own models, without the leniency that it reads answers with."""
    body = Responses().whole(
        frame_of(call, echo={"instructions": "x", "tools": [], "temperature": 1}), answered(call, turn, finish)
    )

    response = Response.model_validate(body)

    assert response.status == ("incomplete" if finish == "length" else "completed")
    assert (response.incomplete_details is not None) == (finish == "length")
    assert response.output_text == (turn.content if turn.content or not turn.tool_calls else "")


@given(CALLS, st.sampled_from(["rs", "msg", "fc"]), st.integers(0, 99), st.text())
def test_ids_and_sealed_reasoning_carry_the_call(call: str, kind: str, index: int, reasoning: str) -> None:
    """And the reasoning, whatever characters it has."""
    assert call_in(item_id(kind, call, index)) == call
    assert unsealed(sealed(call, reasoning)) == (call, reasoning)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
IDS = st.sampled_from(["msg_c1_0", "rs_c1_0", "fc_c1_0", "call_c1_0", "call_c1_1", "call_c2_0", "msg_68af", "x", ""])
SEALS = st.sampled_from([sealed("c1", "x"), "sf1.c1.x", "sf1..", "gAAAA", "..", ""])
WORDS = st.sampled_from([*ROLES, "input_text", "output_text", "text", "refusal", "auto", "function", "message"])
JSON = st.recursive(
    SCALARS | WORDS | IDS | SEALS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
TEXT = st.text(max_size=4) | st.lists(
    st.sampled_from(
        [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "c"}]
    )
)


def items_of(kind: str, required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Items of a kind, mostly as they should be."""
    return st.fixed_dictionaries({"type": st.just(kind), **required}, optional=optional | {"id": IDS | SCALARS})


ITEMS = st.one_of(
    items_of("message", {"role": st.sampled_from(ROLES), "content": TEXT}),
    items_of("reasoning", {}, summary=JSON, content=JSON, encrypted_content=SEALS | JSON),
    items_of("function_call", {"call_id": IDS, "name": st.text(max_size=2), "arguments": st.text(max_size=4)}),
    items_of("function_call_output", {"call_id": IDS, "output": TEXT}),
    items_of("item_reference", {}),
    st.dictionaries(st.sampled_from(["type", "role", "content", "id", "call_id"]), JSON) | JSON,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "name": st.just("f")}, optional=dict.fromkeys(["description", "strict"], JSON)
    )
)
FIELDS = st.sampled_from([*ECHOED, "model", "include", "text", "conversation", "background", "parallel_tool_calls", "stream"])
REQUESTS = st.builds(
    lambda good, items, odd: {**good, "input": items, **odd},
    st.fixed_dictionaries({"model": st.just("m")}, optional={"tools": TOOLS, "metadata": JSON, "instructions": st.text()}),
    st.lists(ITEMS, max_size=5) | st.text(),
    st.just({}) | st.dictionaries(FIELDS, JSON, max_size=2),
)


@given(JSON | REQUESTS)
def test_any_json_is_a_request_or_a_refusal(body: Any) -> None:
    """Never another exception; and what is accepted has the chat completions form."""
    try:
        asked = PreviousResponses().completed(parse_responses(json.dumps(body).encode()))
    except ApiError as refused:
        event(f"refused: {refused.param}")
        assert refused.status == 400
        return
    event("accepted")
    checked_messages(list(asked.messages))
    checked_tools(None if asked.tools is None else list(asked.tools))
    json.dumps(Responses().whole(Frame("c1", 1, asked), answered("c1", Parsed("x"))))
