"""The official openai client, unmodified, against the gateway."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import openai
import pytest

from seamlessflow.bus.memory import MemoryBus
from seamlessflow.codec import encode
from seamlessflow.contracts import AnswerTokens, CallAbandoned, CallError, Float32s, Int32s
from services.agent_runner.gateway import calls, waiting
from services.agent_runner.gateway.chat_answers import ChatStream
from tests.services.agent_runner.conftest import deltas_of

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


def held(seconds: float) -> Any:
    async def reply(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"role": "assistant", "content": "at last"}

    return reply


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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_pause_is_invisible_to_an_impatient_client(gateway: Any, stream: bool) -> None:
    """A client that gives up after 2 s of silence gets its answer after 5 s, by exactly one POST."""
    gateway.manager.reply = held(5.0)
    async with gateway.openai(openai.AsyncOpenAI, timeout=2.0) as client:
        answer = await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
        text = (
            "".join([c.choices[0].delta.content or "" async for c in answer]) if stream else answer.choices[0].message.content
        )

    assert text == "at last"
    assert len(gateway.manager.calls) == 1
    assert gateway.session.close() == ()


async def test_an_answer_is_found_without_any_hint(gateway: Any) -> None:
    """Hints may all be lost: the journal is looked at after a second."""
    gateway.manager.with_hints = False
    async with gateway.openai(openai.AsyncOpenAI) as client:
        began = time.monotonic()
        answer = await client.chat.completions.create(model="m", messages=HELLO)

    assert answer.choices[0].message.content == "echo: hello"
    assert time.monotonic() - began < 3.0


async def test_many_waiters_look_into_the_journal_as_one(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is answered, one look tells all of them; once something is, each finds its own without a hint."""
    gateway.manager.with_hints = False
    gateway.manager.reply = held(2.6)
    looks = Counter[str]()
    for name in ("first", "last"):
        monkeypatch.setattr(MemoryBus, name, counted(getattr(MemoryBus, name), looks, name))

    async with gateway.openai(openai.AsyncOpenAI) as client:
        asking = [asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO)) for _ in range(12)]
        await asyncio.sleep(2.4)
        before = Counter(looks)
        answers = await asyncio.gather(*asking)

    assert before["first"] == 0 and before["last"] <= 8
    assert [answer.choices[0].message.content for answer in answers] == ["at last"] * 12


def counted(method: Any, looks: Counter[str], name: str) -> Any:
    async def look(bus: MemoryBus, stream: str, subject: str) -> Any:
        looks[name] += 1
        return await method(bus, stream, subject)

    return look


async def test_a_hint_does_not_wait_for_a_look_that_takes_long(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that hardly answers holds nobody up as long as hints come."""
    looking = asyncio.Event()

    async def slow(newest: Any, run: str) -> int:
        looking.set()
        await asyncio.sleep(30)
        return 0

    async def reply(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        await looking.wait()
        return {"role": "assistant", "content": "at last"}

    monkeypatch.setattr(waiting.Newest, "answer", slow)
    gateway.manager.reply = reply
    async with gateway.openai(openai.AsyncOpenAI) as client, asyncio.timeout(5.0):
        answer = await client.chat.completions.create(model="m", messages=HELLO)

    assert answer.choices[0].message.content == "at last"


async def test_waiters_look_ever_more_seldom_while_others_are_answered(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a busy run something new always stands in the journal: each look costs a read."""
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "LONGEST_LOOK_SECONDS", 0.8)
    monkeypatch.setattr(waiting, "_FRESH_SECONDS", 0.0)
    speaker, looks = gateway.gateway._desk._speaker, Counter[str]()
    first = speaker.first

    async def look(kind: Any, run: str, **names: str) -> Any:
        looks[names["call"]] += 1
        return await first(kind, run, **names)

    async def reply(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        await asyncio.sleep(2.0 if messages == HELLO else 0)
        return {"role": "assistant", "content": "at last"}

    monkeypatch.setattr(speaker, "first", look)
    gateway.manager.reply = reply
    async with gateway.openai(openai.AsyncOpenAI) as client:
        held = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        while not held.done():
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])
            await asyncio.sleep(0.02)

    assert 2 <= max(looks.values()) <= 6  # after 0.05, 0.1, 0.2, 0.4, 0.8 ... seconds


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


async def test_a_marked_retry_joins_the_call_whose_client_was_lost(gateway: Any) -> None:
    """A broken connection is not a second sample: the retry gets the first call's answer."""
    gateway.manager.reply = held(1.5)
    async with gateway.openai(openai.AsyncOpenAI, max_retries=0) as client:
        lost = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await asyncio.sleep(0.3)
        lost.cancel()
        await asyncio.sleep(0.3)
        answer = await client.chat.completions.create(model="m", messages=HELLO, extra_headers={"x-stainless-retry-count": "1"})

    assert answer.choices[0].message.content == "at last"
    assert len(gateway.manager.calls) == 1
    assert gateway.session.close() == ()


async def test_the_same_body_on_purpose_is_sampled_each_time(gateway: Any) -> None:
    """Best-of-n sends equal bodies side by side; nothing marks them as retries."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        await asyncio.gather(*(client.chat.completions.create(model="m", messages=HELLO) for _ in range(4)))

    assert len(gateway.manager.calls) == 4
    assert len({call.seed for call in gateway.manager.calls}) == 4


async def test_an_answer_that_never_reached_the_agent_is_noted(gateway: Any) -> None:
    """The client went away before the answer came, and did not come back for it."""
    gateway.manager.reply = held(0.8)
    async with gateway.openai(openai.AsyncOpenAI, max_retries=0) as client:
        lost = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await asyncio.sleep(0.3)
        lost.cancel()
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "another"}])
    await asyncio.sleep(1.0)

    undelivered = gateway.sessions.close(gateway.session)
    assert undelivered == (gateway.session.calls[0].id,)


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


async def test_a_retry_of_a_stream_gets_the_whole_text_again(gateway: Any) -> None:
    """Also one that is not marked, as Codex and Claude Code send: the same body, whose client is gone."""
    gateway.manager.reply = held(1.5)
    async with gateway.openai(openai.AsyncOpenAI, max_retries=0) as client:
        asking = {"model": "m", "messages": HELLO, "stream": True}
        lost = asyncio.create_task(client.chat.completions.create(**asking))
        await asyncio.sleep(0.3)
        lost.cancel()
        await asyncio.sleep(0.2)
        text = [chunk.choices[0].delta.content or "" async for chunk in await client.chat.completions.create(**asking)]

    assert "".join(text) == "at last"
    assert len(gateway.manager.calls) == 1
    assert gateway.session.close() == ()


async def test_a_client_that_stays_away_stops_its_sampling(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a grace; who then asks the same is sampled for anew."""
    monkeypatch.setattr(calls, "ABANDON_SECONDS", 0.2)
    gateway.manager.reply = held(3.0)
    async with gateway.openai(openai.AsyncOpenAI, max_retries=0) as client:
        lost = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await asyncio.sleep(0.3)
        lost.cancel()
        first = gateway.session.calls[0]
        async with asyncio.timeout(5.0):
            while not first.is_abandoned:
                await asyncio.sleep(0.05)
        answer = await client.chat.completions.create(model="m", messages=HELLO)

    speaker = gateway.manager.context.speaker
    assert await speaker.first(CallAbandoned, gateway.session.opened.run, episode="t1-0-0", call=first.id) is not None
    assert answer.choices[0].message.content == "at last" and len(gateway.manager.calls) == 2
    assert gateway.session.close() == (first.id,)


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
