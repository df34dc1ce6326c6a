"""The official openai client, unmodified, against the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from seamlessflow.codec import encode
from seamlessflow.contracts import AnswerTokens, CallError, Float32s, Int32s
from seamlessflow_agent_runner.gateway.dialects.openai_chat import ChatStream
from tests.services.agent_runner.conftest import deltas_of
from tests.services.agent_runner.spoken_turns import held

TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
TOOL_CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "calc", "arguments": '{"expression": "3 + 4"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "calc", "arguments": "not json"}},
]
HELLO = [{"role": "user", "content": "hello"}]


async def uses_tools(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "7"}
    return {"role": "assistant", "content": None, "tool_calls": TOOL_CALLS}


async def test_a_whole_answer_by_the_asynchronous_client(gateway: Any) -> None:
    """Text, finish reason, usage and model name come as from any OpenAI endpoint."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        answer = await client.chat.completions.create(model="gpt-any", messages=HELLO)

    assert answer.choices[0].message.content == "echo: hello"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (1, 7, 8)
    assert (answer.model, answer.object) == ("gpt-any", "chat.completion")
    assert gateway.session.close() == ()


async def test_a_whole_answer_by_the_synchronous_client(gateway: Any) -> None:
    """The same by the client most agents use."""

    def ask() -> str:
        with gateway.openai(openai.OpenAI) as client:
            return client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content

    assert await asyncio.to_thread(ask) == "echo: hello"


async def test_a_stream_joins_to_the_same_text(gateway: Any) -> None:
    """Role first, the text in pieces, a finish reason, then usage because it was asked for."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        stream = await client.chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "echo: hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 7
    assert gateway.session.close() == ()


async def test_a_stream_without_usage_carries_none(gateway: Any) -> None:
    """Clients that did not ask for usage index choices[0] of every chunk."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        chunks = [c async for c in await client.chat.completions.create(model="m", messages=HELLO, stream=True)]

    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_parallel_tool_calls_and_their_results(gateway: Any) -> None:
    """Ids and arguments are the manager's, byte for byte; the second call sends only what is new."""
    gateway.manager.reply = uses_tools
    async with gateway.openai(openai.AsyncOpenAI) as client:
        first = await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, tool_choice="auto")
        message = first.choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls]
        second = await client.chat.completions.create(model="m", messages=[*HELLO, message, *results], tools=TOOLS)

    assert first.choices[0].finish_reason == "tool_calls"
    assert [c.model_dump(exclude_none=True) for c in message.tool_calls] == TOOL_CALLS
    assert second.choices[0].message.content == "7"
    one, two = gateway.manager.calls
    assert one.tool_choice == "auto" and one.tools in one.unseen and one.unseen[one.tools] == {"tools": TOOLS}
    assert two.tools == one.tools and two.messages[0] == one.messages[0]
    assert set(two.unseen) == set(two.messages[1:])


async def test_streamed_tool_calls_join_to_the_same_calls(gateway: Any) -> None:
    """The client's own accumulator puts the deltas together."""
    gateway.manager.reply = uses_tools
    async with (
        gateway.openai(openai.AsyncOpenAI) as client,
        client.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as stream,
    ):
        message = (await stream.get_final_completion()).choices[0].message

    joined = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls]
    assert joined == [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in TOOL_CALLS]


async def test_a_prompt_too_long_gets_the_error_that_makes_agents_compact(gateway: Any) -> None:
    """The manager's 400 keeps status, code and words, and is not retried."""

    async def too_long(messages: list[dict[str, Any]], request: Any) -> CallError:
        return CallError(status=400, code="context_length_exceeded", message="too long: 9000 tokens, at most 2048")

    gateway.manager.reply = too_long
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.BadRequestError, match="9000 tokens") as caught:
            await client.chat.completions.create(model="m", messages=HELLO)

    assert caught.value.code == "context_length_exceeded"
    assert len(gateway.manager.calls) == 1


async def test_an_error_after_the_grace_reaches_the_client_by_its_own_retry(gateway: Any) -> None:
    """Status 200 is out already: the connection breaks, the client retries, and the real error waits for it."""

    async def late_error(messages: list[dict[str, Any]], request: Any) -> CallError:
        await asyncio.sleep(1.6)
        return CallError(status=400, code="context_length_exceeded", message="too long")

    gateway.manager.reply = late_error
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.chat.completions.create(model="m", messages=HELLO)

    assert len(gateway.manager.calls) == 1


async def test_an_error_after_the_grace_ends_a_stream_with_an_error_event(gateway: Any) -> None:
    """Streams have a place for it."""

    async def late_error(messages: list[dict[str, Any]], request: Any) -> CallError:
        await asyncio.sleep(1.6)
        return CallError(status=400, code="context_length_exceeded", message="too long")

    gateway.manager.reply = late_error
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.APIError, match="too long"):
            async for _ in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
                pass


async def test_calls_of_an_ended_episode_get_409_at_once(gateway: Any) -> None:
    """Also a call that is being held when the episode ends; the client does not retry it."""
    gateway.manager.reply = held(60.0)
    async with gateway.openai(openai.AsyncOpenAI) as client:
        waiting = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await asyncio.sleep(0.3)
        gateway.sessions.close(gateway.session)
        for call in (waiting, client.chat.completions.create(model="m", messages=HELLO)):
            with pytest.raises(openai.ConflictError, match="over"):
                await call

    assert len(gateway.manager.calls) == 1


async def test_asking_for_logprobs_does_not_change_the_answer(gateway: Any) -> None:
    """Recording is not the agent's to switch on or off; sampling fields are the run's."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        answer = await client.chat.completions.create(
            model="m", messages=HELLO, logprobs=True, top_logprobs=5, temperature=0.1, seed=3, max_completion_tokens=9
        )

    assert answer.choices[0].logprobs is None
    sampling = gateway.manager.calls[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (1.0, 9)


async def test_models_are_listed(gateway: Any) -> None:
    """Some agents look before they ask."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        assert [model.id for model in (await client.models.list()).data] == ["tiny"]


async def test_a_wrong_key_is_refused(gateway: Any) -> None:
    """401, by either header."""
    async with openai.AsyncOpenAI(base_url=gateway.gateway.base_url, api_key="sf-guessed") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=HELLO)
    assert gateway.manager.calls == []


async def test_text_reaches_the_client_before_the_answer_is_there(gateway: Any) -> None:
    """As it is sampled: reasoning, then content, each once however the hints overlap; the rest comes with the answer."""

    async def reply(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        said = {"role": "assistant", "content": "seven it is", "reasoning_content": "3 and 4"}
        for delta in deltas_of(request, said):
            await gateway.world.manager.context.bus.hint(request.reply, encode(delta))
        await asyncio.wait_for(was_read.wait(), 5.0)
        return said

    was_read = asyncio.Event()
    gateway.manager.reply = reply
    reasoning = content = ""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        async for chunk in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
            delta = chunk.choices[0].delta
            reasoning, content = reasoning + (getattr(delta, "reasoning_content", None) or ""), content + (delta.content or "")
            if content == "seven it ":
                was_read.set()

    assert (reasoning, content) == ("3 and 4", "seven it is")


async def test_an_answer_that_cannot_be_written_down_is_an_error_and_no_silence(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 200 has gone out by then."""
    monkeypatch.setattr(ChatStream, "ending", lambda *_: 1 / 0)
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.APIError, match="its log says why"):
            async for _ in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
                pass


async def test_logprobs_of_the_sampled_tokens_are_handed_out_on_demand(gateway: Any) -> None:
    """In a whole answer and in a stream."""
    tokens = AnswerTokens(token_ids=Int32s([5, 6]), logprobs=Float32s([-0.5, -0.25]), texts=("sev", "en"))

    async def reply(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        assert request.logprobs
        return {"role": "assistant", "content": "seven"}

    gateway.manager.reply, gateway.manager.tokens = reply, tokens
    async with gateway.openai(openai.AsyncOpenAI) as client:
        asking = {"model": "m", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
        answer = await client.chat.completions.create(**asking)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asking, stream=True)]

    listed = [(each.token, each.logprob, bytes(each.bytes)) for each in answer.choices[0].logprobs.content]
    assert listed == [("sev", -0.5, b"sev"), ("en", -0.25, b"en")]
    (streamed,) = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert streamed.content == answer.choices[0].logprobs.content


async def test_a_client_that_cannot_set_a_key_has_it_in_its_path(gateway: Any) -> None:
    """Below /e/<key> nothing else is needed; below /e/<episode> the key is, and no other will do."""
    root = gateway.gateway.base_url.removesuffix("/v1")

    async def ask(who: str, key: str) -> str:
        async with openai.AsyncOpenAI(base_url=f"{root}/e/{who}/v1", api_key=key) as client:
            assert [model.id for model in (await client.models.list()).data] == ["tiny"]
            return (await client.chat.completions.create(model="m", messages=HELLO)).choices[0].message.content

    key, episode = gateway.session.key, gateway.session.opened.episode
    other = gateway.sessions.open(gateway.session.opened.model_copy(update={"episode": "t2-0-0"}), "tiny")
    assert [await ask(key, "anything"), await ask(episode, key)] == ["echo: hello"] * 2
    for who, wrong in ((episode, "anything"), (episode, other.key), ("t9-0-0", key)):
        with pytest.raises(openai.AuthenticationError):
            await ask(who, wrong)
