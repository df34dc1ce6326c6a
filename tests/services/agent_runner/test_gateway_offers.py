"""What agents offer and demand by default and a model without constrained decoding cannot be held to: no agent dies of it.

tool_choice that demands a call       taken as auto, said once in the log
one call at a time                    the first is handed out
tools that nobody here could run      left out of the offer, shown again in a response, said once in the log
namespaces of functions (Codex)       offered one by one, called by both names
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response
from structlog.testing import capture_logs

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.dialects.anthropic_answer import AnthropicMessages
from seamlessflow_agent_runner.gateway.dialects.anthropic_request import parse_messages
from seamlessflow_agent_runner.gateway.dialects.base import ApiDialect, Frame, ParsedRequest
from seamlessflow_agent_runner.gateway.dialects.openai_chat import ChatCompletions, checked_tools, parse_chat
from seamlessflow_agent_runner.gateway.dialects.openai_responses_answer import Responses, output_items
from seamlessflow_agent_runner.gateway.dialects.openai_responses_request import messages_in, parse_responses
from seamlessflow_agent_runner.gateway.dialects.request_fields import FREE_CHOICE, HOSTED, MAX_DEPTH, json_object, shown
from seamlessflow_trajectory_manager.rendering.tool_calls import Parsed, ToolCall
from seamlessflow_trajectory_manager.trajectory.call_answers import message_of
from seamlessflow_trajectory_manager.trajectory.message_identity import identity_of
from tests.services.agent_runner.spoken_turns import Script, parents_of, turn

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}}
CHAT_TOOL = {"type": "function", "function": {"name": "calc", "parameters": SCHEMA}}
TOOL = {"type": "function", "name": "calc", "parameters": SCHEMA}
CALC = {"name": "calc", "input_schema": SCHEMA}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Sub-agents.",
    "tools": [{"type": "function", "name": name, "strict": False, "parameters": SCHEMA} for name in ("spawn", "close")],
}
CODEX_TOOLS = [TOOL, AGENTS, {"type": "web_search", "external_web_access": True}]


def asked(dialect: ApiDialect, **fields: Any) -> ParsedRequest:
    said = {"input": "hi"} if isinstance(dialect, Responses) else {"messages": HI}
    return dialect.parse(json.dumps({"model": "m", **said, **fields}).encode())


DEMANDS: list[tuple[ApiDialect, Any]] = [
    (ChatCompletions(), "required"),
    (ChatCompletions(), {"type": "function", "function": {"name": "calc"}}),
    (ChatCompletions(), {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}),
    (Responses(), "required"),
    (Responses(), {"type": "function", "name": "calc"}),
    (Responses(), {"type": "web_search"}),
    (AnthropicMessages(), {"type": "any"}),
    (AnthropicMessages(), {"type": "tool", "name": "calc"}),
]


@pytest.mark.parametrize(("dialect", "choice"), DEMANDS)
def test_a_demand_for_a_call_is_taken_as_a_wish(dialect: ApiDialect, choice: Any) -> None:
    """smolagents sends "required" with every step, pydantic-ai for structured answers; both try again without a call."""
    request = asked(dialect, tool_choice=choice)

    assert (request.tool_choice, request.notes) == ("auto", (FREE_CHOICE,))


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "auto"}, {"type": "none"}, None])
@pytest.mark.parametrize("dialect", [ChatCompletions(), Responses(), AnthropicMessages()])
def test_what_can_be_kept_is_kept_without_a_note(dialect: ApiDialect, choice: Any) -> None:
    """Auto and none, in either form."""
    request = asked(dialect, tool_choice=choice)

    kind = choice["type"] if isinstance(choice, dict) else choice
    assert (request.tool_choice, request.notes) == (kind, ())


async def test_what_is_not_followed_is_said_once(gateway: Any) -> None:
    """Agents ask the same with every call."""
    with capture_logs() as logs:
        async with gateway.openai(openai.AsyncOpenAI) as client:
            for _ in range(3):
                await client.chat.completions.create(model="m", messages=HI, tools=[CHAT_TOOL], tool_choice="required")
                await client.responses.create(model="m", input="hi", tools=CODEX_TOOLS)

    said = [entry["reason"] for entry in logs if entry["event"] == "request.not_followed"]
    assert said == [FREE_CHOICE, HOSTED]


TWO = turn("both", '{"a": 1}', '{"b": 2}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("one", [False, True])
async def test_one_call_at_a_time_by_chat_and_responses(gateway: Any, one: bool, stream: bool) -> None:
    """With parallel_tool_calls = false the first of two calls is handed out; its turn is still found, and gone on from."""
    script = gateway.manager.reply = Script([TWO, turn("done"), TWO, turn("done")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        known = {"model": "m", "messages": HI, "tools": [CHAT_TOOL], "parallel_tool_calls": not one}
        if stream:
            async with client.chat.completions.stream(**known) as events:
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**known)).choices[0].message
        echoed = {"role": "assistant", "content": message.content, "tool_calls": [c.model_dump() for c in message.tool_calls]}
        results = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls]
        for call in echoed["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
        await client.chat.completions.create(model="m", messages=[*HI, echoed, *results], tools=[CHAT_TOOL])
        response = await client.responses.create(model="m", input="go", tools=[TOOL], parallel_tool_calls=not one)
        calls = [item for item in response.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "7"} for call in calls]
        await client.responses.create(model="m", input=results, tools=[TOOL], previous_response_id=response.id)

    assert len(message.tool_calls) == len(calls) == (1 if one else 2)
    assert (calls[0].arguments, response.parallel_tool_calls) == ('{"a": 1}', not one)
    assert parents_of(gateway.manager, script.said) == [None, 0, None, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_call_at_a_time_by_messages(gateway: Any, stream: bool) -> None:
    """The same by disable_parallel_tool_use."""
    gateway.manager.reply = Script([TWO])
    known: Any = {"model": "m", "max_tokens": 9, "messages": HI, "tools": [CALC]}
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    async with gateway.anthropic(anthropic.AsyncAnthropic) as client:
        if stream:
            async with client.messages.stream(**known, tool_choice=choice) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**known, tool_choice=choice)

    assert [block.input for block in message.content if block.type == "tool_use"] == [{"a": 1}]
    assert message.stop_reason == "tool_use"


def test_the_offer_of_codex_is_what_the_model_can_call() -> None:
    """Without the web search, and with the functions of the namespace one by one; the response shows what was sent."""
    request = asked(Responses(), tools=CODEX_TOOLS)

    offered = checked_tools(list(request.tools or ()))
    assert [tool["function"]["name"] for tool in offered or ()] == ["calc", "multi_agent_v1__spawn", "multi_agent_v1__close"]
    assert request.tools is not None and request.tools[1]["function"]["strict"] is False
    assert request.notes == (HOSTED,)
    body = Responses().whole(Frame("c1", 1, request), answered("c1", Parsed("x")))
    assert body["tools"] == CODEX_TOOLS


@pytest.mark.parametrize("stream", [False, True])
async def test_functions_of_a_namespace_are_called_by_both_names(gateway: Any, stream: bool) -> None:
    """Codex routes by name and namespace, and sends both back; the turn is the one that was sampled."""
    sampled = Parsed("", (ToolCall("multi_agent_v1__close", '{"target": "a"}'), ToolCall("calc", "{}")), None)
    script = gateway.manager.reply = Script([sampled, turn("done")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        known = {"model": "m", "input": HI, "tools": CODEX_TOOLS}
        if stream:
            events = [event async for event in await client.responses.create(**known, stream=True)]
            response: Response = events[-1].response
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert done == response.output
        else:
            response = await client.responses.create(**known)
        close, calc = response.output
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "7"} for call in (close, calc)]
        await client.responses.create(model="m", input=[*HI, *response.output, *outputs], tools=CODEX_TOOLS)

    assert (close.name, close.namespace, calc.name, calc.namespace) == ("close", "multi_agent_v1", "calc", None)
    assert parents_of(gateway.manager, script.said) == [None, 0]
    back = gateway.manager.contents[gateway.manager.calls[1].messages[1]]
    assert back["tool_calls"][0]["function"]["name"] == "multi_agent_v1__close"


NAMES = st.text(st.sampled_from("ab_"), min_size=1, max_size=5)


def answered(call: str, parsed: Parsed) -> CallAnswered:
    return CallAnswered(run="r", episode="e", call=call, message=message_of(parsed, call))


@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=2, unique=True), max_size=3), st.lists(NAMES, max_size=2))
def test_a_called_function_comes_back_as_it_was_sampled(spaces: dict[str, list[str]], plain: list[str]) -> None:
    """Whatever namespaces and functions are called; a name that means a plain function means that."""
    tools = [{"type": "function", "name": name} for name in plain]
    tools += [
        {"type": "namespace", "name": s, "tools": [{"type": "function", "name": n} for n in ns]} for s, ns in spaces.items()
    ]
    request = asked(Responses(), tools=tools)
    called = Parsed("", tuple(ToolCall(tool["function"]["name"], "{}") for tool in request.tools or ()), None)

    items = output_items(Frame("c1", 1, request), answered("c1", called))

    (echoed,) = messages_in(json.loads(json.dumps(items)))
    assert identity_of(echoed) == identity_of(message_of(called, "c1"))
    given = {(item.get("namespace"), item["name"]) for item in items if item["type"] == "function_call"}
    assert given <= {(None, name) for name in plain} | {(space, name) for space, names in spaces.items() for name in names}


ANTHROPICS = [
    "web_search_20250305", "code_execution_20250825", "web_fetch_20250910", "mcp_toolset",
    "tool_search_tool_bm25_20251119", "tool_search_tool_regex",
]  # fmt: skip


def test_tools_that_anthropics_servers_would_run_are_left_out() -> None:
    """Nobody here could run them."""
    request = asked(AnthropicMessages(), tools=[{"type": kind, "name": "x"} for kind in ANTHROPICS] + [CALC])

    assert [tool["function"]["name"] for tool in request.tools or ()] == ["calc"]
    assert request.notes == (HOSTED,)
    assert asked(AnthropicMessages(), tools=[{"type": ANTHROPICS[0], "name": "x"}]).tools is None


@pytest.mark.parametrize(
    ("kind", "name", "commands"),
    [
        ("bash_20250124", "bash", None),
        ("text_editor_20250124", "str_replace_editor", ["view", "create", "str_replace", "insert", "undo_edit"]),
        ("text_editor_20250728", "str_replace_based_edit_tool", ["view", "create", "str_replace", "insert"]),
        ("memory_20250818", "memory", ["view", "create", "str_replace", "insert", "delete", "rename"]),
    ],
)
def test_tools_of_anthropics_own_that_the_agent_runs_are_offered(kind: str, name: str, commands: list[str] | None) -> None:
    """By the name that the agent goes by, with the parameters that it expects, which its request leaves out."""
    request = asked(AnthropicMessages(), tools=[{"type": kind, "name": name, "max_characters": 9}])

    (tool,) = checked_tools(list(request.tools or ())) or ()
    properties = tool["function"]["parameters"]["properties"]
    assert (tool["function"]["name"], request.notes) == (name, ())
    assert properties["command"].get("enum") == commands
    expected = {"restart"} if name == "bash" else {"path", "file_text", "old_str", "new_str", "insert_line", "view_range"}
    assert expected <= properties.keys()


@pytest.mark.parametrize(("tool", "words"), [({"type": "computer_20250124", "name": "computer"}, "pictures"),
                                             ({"type": "bash_20250124"}, "name of the tool")])  # fmt: skip
def test_a_tool_of_anthropics_own_that_cannot_be_offered_is_refused(tool: dict[str, Any], words: str) -> None:
    """Its agent would wait for calls that never come."""
    with pytest.raises(ApiError, match=words):
        asked(AnthropicMessages(), tools=[tool])


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview_2025_03_11", "file_search", "mcp", "custom", "tool_search"])
def test_hosted_tools_of_openais_are_left_out(kind: str) -> None:
    """Alone, and in a namespace."""
    assert asked(Responses(), tools=[{"type": kind}]).tools is None
    inside = asked(Responses(), tools=[{"type": "namespace", "name": "n", "tools": [{"type": kind, "name": "x"}]}])
    assert (inside.tools, inside.notes) == (None, (HOSTED,))


LONG = "x" * 10_000
ECHOING: list[tuple[Any, dict[str, Any]]] = [
    (parse_chat, {"messages": [{"role": LONG}]}),
    (parse_chat, {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    (parse_chat, {"messages": HI, "tool_choice": LONG}),
    (parse_chat, {"messages": HI, "max_tokens": [LONG]}),
    (parse_chat, {"messages": HI, "parallel_tool_calls": [[LONG]]}),
    (parse_responses, {"input": [{"type": LONG}]}),
    (parse_responses, {"input": [{"role": LONG}]}),
    (parse_responses, {"input": "hi", "tools": [{"type": LONG}]}),
    (parse_responses, {"input": "hi", "previous_response_id": LONG}),
    (parse_messages, {"messages": [{"role": LONG, "content": "x"}]}),
    (parse_messages, {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    (parse_messages, {"messages": HI, "tools": [{"type": LONG}]}),
]


@pytest.mark.parametrize(("parse", "fields"), ECHOING)
def test_a_refusal_shows_little_of_what_it_refuses(parse: Any, fields: dict[str, Any]) -> None:
    """A sentence, not the request."""
    with pytest.raises(ApiError) as caught:
        parse(json.dumps({"model": "m", **fields}).encode())

    assert len(caught.value.message) < 400


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_shown_value_is_short(value: Any) -> None:
    """Whatever it is."""
    assert len(shown(value)) <= 100


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, 400, 600, 900, 5_000, 100_000])
def test_depth_is_accepted_or_refused_and_never_a_failure(opening: str, levels: int) -> None:
    """Also between what the parser takes and what those behind it take."""
    closing = "]" if opening == "[" else "}"
    raw = ('{"a":' + opening * levels + "1" + closing * levels + "}").encode()
    if levels < MAX_DEPTH:
        assert json_object(raw)
        return
    with pytest.raises(ApiError) as caught:
        json_object(raw)
    assert caught.value.status == 400
