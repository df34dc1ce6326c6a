"""Answers that take long, and how they are found: the official openai client against the gateway."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import openai
import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow_agent_runner.gateway import answer_wait
from tests.services.agent_runner.spoken_turns import held

TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
TOOL_CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "calc", "arguments": '{"expression": "3 + 4"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "calc", "arguments": "not json"}},
]
HELLO = [{"role": "user", "content": "hello"}]


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

    monkeypatch.setattr(answer_wait.NewestAnswer, "answer", slow)
    gateway.manager.reply = reply
    async with gateway.openai(openai.AsyncOpenAI) as client, asyncio.timeout(5.0):
        answer = await client.chat.completions.create(model="m", messages=HELLO)

    assert answer.choices[0].message.content == "at last"


async def test_waiters_look_ever_more_seldom_while_others_are_answered(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a busy run something new always stands in the journal: each look costs a read."""
    monkeypatch.setattr(answer_wait, "FIRST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(answer_wait, "LONGEST_LOOK_SECONDS", 0.8)
    monkeypatch.setattr(answer_wait, "_FRESH_SECONDS", 0.0)
    journal, looks = gateway.gateway._calls._journal, Counter[str]()
    first = journal.first

    async def look(kind: Any, run: str, **names: str) -> Any:
        looks[names["call"]] += 1
        return await first(kind, run, **names)

    async def reply(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        await asyncio.sleep(2.0 if messages == HELLO else 0)
        return {"role": "assistant", "content": "at last"}

    monkeypatch.setattr(journal, "first", look)
    gateway.manager.reply = reply
    async with gateway.openai(openai.AsyncOpenAI) as client:
        held = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        while not held.done():
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])
            await asyncio.sleep(0.02)

    assert 2 <= max(looks.values()) <= 6  # after 0.05, 0.1, 0.2, 0.4, 0.8 ... seconds
