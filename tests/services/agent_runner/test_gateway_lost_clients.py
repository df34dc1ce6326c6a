"""Clients that go away, and that come back: the official openai client against the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from seamlessflow.contracts import CallAbandoned
from seamlessflow_agent_runner.gateway import call_requests
from seamlessflow_agent_runner.gateway.error_middleware import DIALECTS
from seamlessflow_agent_runner.gateway.http_server import digest_of
from tests.services.agent_runner.spoken_turns import held

TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
TOOL_CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "calc", "arguments": '{"expression": "3 + 4"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "calc", "arguments": "not json"}},
]
HELLO = [{"role": "user", "content": "hello"}]


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


async def test_a_stream_that_was_given_up_is_asked_for_as_a_whole(gateway: Any) -> None:
    """As Claude Code does after five minutes: the same body without ``stream`` is the same call, whose client is gone."""
    gateway.manager.reply = held(1.5)
    async with gateway.openai(openai.AsyncOpenAI, max_retries=0) as client:
        lost = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, stream=True))
        await asyncio.sleep(0.3)
        lost.cancel()
        await asyncio.sleep(0.2)
        answer = await client.chat.completions.create(model="m", messages=HELLO)

    assert answer.choices[0].message.content == "at last"
    assert len(gateway.manager.calls) == 1
    assert gateway.session.close() == ()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b'{"model":"m","stream":true}', b'{"model":"m"}', True),
        (b'{"stream": true, "model": "m"}', b'{"model": "m"}', True),
        (b'{"model": "m", "stream": true, "n": 1}', b'{"model": "m", "n": 1}', True),
        (b'{"input":{"stream":true},"stream":true}', b'{"input":{"stream":true}}', False),  # which it was is not clear
        (b'{"input":{},"stream":true}', b'{"input":{"stream":true}}', False),
        (b'{"text":"\\"stream\\":true,","stream":true}', b'{"text":"\\"stream\\":true,"}', True),
    ],
)
def test_only_what_turns_streaming_on_is_left_out(one: bytes, other: bytes, is_same: bool) -> None:
    """A key of that name in an argument is part of the question."""
    streamed, whole = (digest_of(DIALECTS[0], raw, is_stream=is_stream) for raw, is_stream in ((one, True), (other, False)))

    assert (streamed == whole) is is_same


async def test_a_client_that_stays_away_stops_its_sampling(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a grace; who then asks the same is sampled for anew."""
    monkeypatch.setattr(call_requests, "ABANDON_SECONDS", 0.2)
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

    journal = gateway.manager.context.journal
    assert await journal.first(CallAbandoned, gateway.session.opened.run, episode="t1-0-0", call=first.id) is not None
    assert answer.choices[0].message.content == "at last" and len(gateway.manager.calls) == 2
    assert gateway.session.close() == (first.id,)
