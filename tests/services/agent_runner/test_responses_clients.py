"""The official openai client's responses API, unmodified, against the gateway."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from seamlessflow.contracts import CallError
from tests.services.agent_runner.spoken_turns import Script, parents_of, turn

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = [{"type": "function", "name": "calc", "description": "Calculates.", "parameters": PARAMETERS}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "calc", "description": "Calculates.", "parameters": PARAMETERS}}]
SEALED = ["reasoning.encrypted_content"]
PRETTY = '{\n  "expression":   "3 + 4"\n}'
HELLO = [{"role": "user", "content": "hello"}]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def ask(client: Any, *, streamed: bool, **request: Any) -> Any:
    """The response, put together by the client itself where it is streamed."""
    if not streamed:
        return await client.responses.create(model="m", **request)
    async with client.responses.stream(model="m", **request) as stream:
        return await stream.get_final_response()


def outputs(response: Any) -> list[dict[str, Any]]:
    """What a tool gave for each function call."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "7"} for call in calls]


async def test_a_whole_answer(gateway: Any) -> None:
    """Text, status and usage; every field has the form that the client's own models demand."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        answer = await client.responses.create(
            model="gpt-any", input="hello", instructions="be brief", tools=TOOLS, metadata={"a": "b"}, max_output_tokens=9
        )

    assert (answer.output_text, answer.status, answer.model) == ("echo: hello", "completed", "gpt-any")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (2, 7, 9)
    assert (answer.instructions, answer.metadata, answer.max_output_tokens) == ("be brief", {"a": "b"}, 9)
    Response.model_validate(answer.to_dict())
    (call,) = gateway.manager.calls
    assert [gateway.manager.contents[key]["role"] for key in call.messages] == ["system", "user"]
    assert call.unseen[call.tools] == {"tools": CHAT_TOOLS} and call.sampling.max_tokens == 9
    assert gateway.session.close() == ()


async def test_a_whole_answer_by_the_synchronous_client(gateway: Any) -> None:
    """The same by the client most agents use."""

    def said() -> str:
        with gateway.openai(openai.OpenAI) as client:
            return client.responses.create(model="m", input=HELLO).output_text

    assert await asyncio.to_thread(said) == "echo: hello"


async def test_the_events_of_a_stream(gateway: Any) -> None:
    """In OpenAI's order, numbered without a gap, each of the form its model demands; deltas join to the text."""
    gateway.manager.reply = Script([turn("seven it is", PRETTY, reasoning="hm")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        events = [event async for event in await client.responses.create(model="m", input=HELLO, tools=TOOLS, stream=True)]

    for event in events:
        EVENT.validate_python(event.to_dict())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds.count("output_text.delta") >= 2
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    function = ["function_call_arguments.delta", "function_call_arguments.done"]
    added, done = "output_item.added", "output_item.done"
    items = [added, "in_progress", done, added, *text, done, added, *function, done]
    assert [kind for kind, _ in groupby(kinds)] == ["created", "in_progress", *items, "completed"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "seven it is"
    assert events[-1].response.output_text == "seven it is"
    assert gateway.session.close() == ()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("history", ["whole", "by ids", "pointed at"])
async def test_turns_with_tools_are_one_chain(gateway: Any, history: str, streamed: bool) -> None:
    """Whether the client sends everything again or points at it: no turn is taken for another's, none for nobody's."""
    script = gateway.manager.reply = Script(
        [
            turn("both at once", PRETTY, '{"expression": "1"}', reasoning="two calls"),
            turn("", "not json"),
            turn("done"),
            turn("thanks to you"),
        ]
    )
    said: list[Any] = [*HELLO]
    new: list[Any] = said
    previous: dict[str, Any] = {}
    async with gateway.openai(openai.AsyncOpenAI) as client:
        for _ in range(4):
            given = {"input": new, **previous} if history == "pointed at" else {"input": said}
            answer = await ask(client, streamed=streamed, instructions="be brief", tools=TOOLS, **given)
            new = outputs(answer) or [{"role": "user", "content": "thanks"}]
            previous = {"previous_response_id": answer.id}
            echoed = (
                [{"type": "item_reference", "id": item.id} for item in answer.output] if history == "by ids" else answer.output
            )
            said = [*said, *echoed, *new]

    assert parents_of(gateway.manager, script.said) == [None, 0, 1, 2]
    roles = [gateway.manager.contents[key]["role"] for key in gateway.manager.calls[-1].messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"]
    first = gateway.manager.contents[gateway.manager.calls[-1].messages[2]]
    assert [each["function"]["arguments"] for each in first["tool_calls"]] == [PRETTY, '{"expression": "1"}']


@pytest.mark.parametrize("streamed", [False, True])
async def test_parallel_function_calls(gateway: Any, streamed: bool) -> None:
    """Ids are the manager's, arguments as they were sampled; ids of items differ."""
    script = gateway.manager.reply = Script([turn("", PRETTY, "not json")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        answer = await ask(client, streamed=streamed, input=HELLO, tools=TOOLS, tool_choice="auto", parallel_tool_calls=True)

    (message,) = script.said.values()
    given = [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in message["tool_calls"]]
    assert [(item.call_id, item.name, item.arguments) for item in answer.output] == given
    assert len({item.id for item in answer.output}) == 2
    assert gateway.manager.calls[0].tool_choice == "auto"


@pytest.mark.parametrize("streamed", [False, True])
async def test_reasoning_comes_back_by_encrypted_content(gateway: Any, streamed: bool) -> None:
    """Asked for by ``include``, as agents do that keep nothing on the server; the model sees it in the next turn."""
    script = gateway.manager.reply = Script([turn("seven", reasoning="3 and 4\nis 7 ✓"), turn("yes")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        first = await ask(client, streamed=streamed, input=HELLO, include=SEALED, store=False)
        said = [*HELLO, *first.output, {"role": "user", "content": "sure?"}]
        await ask(client, streamed=streamed, input=said, include=SEALED, store=False)

    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert first.output[0].summary == [] and "3 and 4" not in first.output[0].encrypted_content
    back = gateway.manager.contents[gateway.manager.calls[1].messages[1]]
    assert (back["reasoning_content"], back["content"]) == ("3 and 4\nis 7 ✓", "seven")
    assert parents_of(gateway.manager, script.said) == [None, 0]


async def test_encrypted_content_is_sent_only_where_it_is_asked_for(gateway: Any) -> None:
    """As by OpenAI."""
    gateway.manager.reply = Script([turn("seven", reasoning="hm")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        answer = await client.responses.create(model="m", input=HELLO)

    assert answer.output[0].type == "reasoning" and answer.output[0].encrypted_content is None


async def test_item_ids_tell_apart_two_turns_that_say_the_same(gateway: Any) -> None:
    """Best-of-n may give one text twice; the one that is sent back is the one that goes on."""
    script = gateway.manager.reply = Script(
        [turn("seven", reasoning="guessed"), turn("seven", reasoning="counted"), turn("yes")]
    )
    async with gateway.openai(openai.AsyncOpenAI) as client:
        await client.responses.create(model="m", input=HELLO)
        second = await client.responses.create(model="m", input=HELLO)
        await client.responses.create(model="m", input=[*HELLO, *second.output, {"role": "user", "content": "sure?"}])

    assert parents_of(gateway.manager, script.said) == [None, None, 1]


async def test_a_conversation_has_one_tree_whatever_it_is_spoken_in(gateway: Any) -> None:
    """Chat completions first, responses next, and back: still one chain."""
    script = gateway.manager.reply = Script([turn("", PRETTY), turn("7"), turn("yes")])
    user, more = {"role": "user", "content": "3 + 4?"}, {"role": "user", "content": "sure?"}
    async with gateway.openai(openai.AsyncOpenAI) as client:
        first = await client.chat.completions.create(model="m", messages=[user], tools=CHAT_TOOLS)
        (call,) = first.choices[0].message.tool_calls
        item = {"type": "function_call", "call_id": call.id, "name": "calc", "arguments": call.function.arguments}
        output = {"type": "function_call_output", "call_id": call.id, "output": "7"}
        second = await client.responses.create(model="m", input=[user, item, output], tools=TOOLS)
        result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
        said = {"role": "assistant", "content": second.output_text}
        messages = [user, first.choices[0].message, result, said, more]
        await client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)

    assert parents_of(gateway.manager, script.said) == [None, 0, 1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_long_pause_is_invisible_to_an_impatient_client(gateway: Any, streamed: bool) -> None:
    """A client that gives up after 2 s of silence gets its answer after 4 s, by exactly one POST."""
    gateway.manager.reply = Script([turn("at last")], seconds=4.0)
    async with gateway.openai(openai.AsyncOpenAI, timeout=2.0) as client:
        answer = await ask(client, streamed=streamed, input=HELLO)

    assert answer.output_text == "at last"
    assert len(gateway.manager.calls) == 1
    assert gateway.session.close() == ()


async def test_a_held_stream_sends_numbered_events(gateway: Any) -> None:
    """Events, since comment lines do not reset every client's timer; they take part in the numbering."""
    gateway.manager.reply = Script([turn("at last")], seconds=2.5)
    async with gateway.openai(openai.AsyncOpenAI) as client:
        events = [event async for event in await client.responses.create(model="m", input=HELLO, stream=True)]

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.in_progress") > 1


def fails(error: CallError, *, seconds: float = 0.0) -> Any:
    async def reply(messages: list[dict[str, Any]], request: Any) -> CallError:
        await asyncio.sleep(seconds)
        return error

    return reply


TOO_LONG = CallError(status=400, code="context_length_exceeded", message="too long: 9000 tokens, at most 2048")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 1.6])
async def test_a_prompt_too_long_raises_the_clients_own_error(gateway: Any, seconds: float, streamed: bool) -> None:
    """At once, or after status 200 went out: then a stream ends with it, and a whole answer's retry gets it."""
    gateway.manager.reply = fails(TOO_LONG, seconds=seconds)
    kind = openai.APIError if streamed and seconds else openai.BadRequestError
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(kind, match="9000 tokens") as caught:
            await ask(client, streamed=streamed, input=HELLO)

    assert caught.value.code == "context_length_exceeded"
    assert len(gateway.manager.calls) == 1


async def test_a_late_error_is_a_failed_response_for_clients_that_look_there(gateway: Any) -> None:
    """Codex reads the code from ``response.error`` and compacts."""
    gateway.manager.reply = fails(TOO_LONG, seconds=1.2)
    async with gateway.openai(openai.AsyncOpenAI) as client:
        response = await client.responses.with_raw_response.create(model="m", input=HELLO, stream=True)
        lines = [line async for line in response.http_response.aiter_lines()]

    assert lines[-3] == "event: response.failed"
    failed = json.loads(lines[-2].removeprefix("data: "))["response"]
    assert (failed["status"], failed["error"]) == ("failed", {"code": TOO_LONG.code, "message": TOO_LONG.message})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"tools": [{"type": "oracle"}]}, "of type function and namespace"),
        ({"previous_response_id": "resp_c0"}, "was not answered in this session"),
        ({"previous_response_id": "resp_68af"}, "send the whole input"),
        ({"input": [{"type": "item_reference", "id": "msg_c0_0"}]}, "was not answered in this session"),
        ({"background": True}, "background is not supported"),
    ],
)
async def test_what_is_not_supported_is_refused_with_what_to_change(gateway: Any, request_: Any, words: str) -> None:
    """400, and nothing reaches the manager."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.BadRequestError, match=words):
            await client.responses.create(**{"model": "m", "input": HELLO, **request_})
    assert gateway.manager.calls == []


async def test_an_answer_that_was_not_to_be_stored_cannot_be_pointed_at(gateway: Any) -> None:
    """As by OpenAI."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        first = await client.responses.create(model="m", input="hello", store=False)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", input="more", previous_response_id=first.id)

    assert caught.value.code == "previous_response_not_found"


async def test_instructions_are_not_inherited_and_answers_can_be_gone_on_from_twice(gateway: Any) -> None:
    """As by OpenAI: each request brings its own instructions."""
    script = gateway.manager.reply = Script([turn("seven"), turn("yes"), turn("no")])
    async with gateway.openai(openai.AsyncOpenAI) as client:
        first = await client.responses.create(model="m", input="hello", instructions="be brief")
        for instructions in ("be brief", "be long"):
            await client.responses.create(model="m", input="sure?", instructions=instructions, previous_response_id=first.id)

    told = [[gateway.manager.contents[key]["content"] for key in call.messages] for call in gateway.manager.calls]
    assert told[1:] == [[instructions, "hello", "seven", "sure?"] for instructions in ("be brief", "be long")]
    assert len(script.said) == 3


async def test_an_ended_episode_and_a_wrong_key(gateway: Any) -> None:
    """409 and 401 as the client's own classes."""
    async with openai.AsyncOpenAI(base_url=gateway.gateway.base_url, api_key="sf-guessed") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="m", input="hello")
    gateway.sessions.close(gateway.session)
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.ConflictError, match="over"):
            await client.responses.create(model="m", input="hello")
