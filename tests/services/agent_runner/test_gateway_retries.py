"""Which call a request repeats, and which clients a call has.

client    other client        marked      leads to
lost      -                   any         that call
alive     -                   no          a call of its own
alive     -                   retry n     that call, if fewer than n joined it before
alive     leaves again        retry       nothing: the call still has a client
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from seamlessflow.codec import encode
from seamlessflow.contracts import AnswerDelta
from seamlessflow.errors import Unavailable
from seamlessflow_agent_runner.gateway import call_requests
from tests.services.agent_runner.sockets import ask, body, until

HELLO = [{"role": "user", "content": "hello"}]


class Held:
    """A reply function: each call waits, and then says which one it was."""

    def __init__(self) -> None:
        self.go, self.num_asked = asyncio.Event(), 0

    async def __call__(self, messages: Any, request: Any) -> dict[str, Any]:
        self.num_asked += 1
        number = self.num_asked
        await self.go.wait()
        return {"role": "assistant", "content": f"sample {number}"}


@pytest.fixture
def held(gateway: Any) -> Held:
    gateway.manager.reply = reply = Held()
    return reply


async def test_a_call_is_not_lost_while_one_of_its_clients_stays(
    gateway: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry that joined it and left again takes nothing away from the first client."""
    monkeypatch.setattr(call_requests, "ABANDON_SECONDS", 0.2)
    first = await ask(gateway, body())
    await until(lambda: len(gateway.session.calls) == 1)
    (call,) = gateway.session.calls
    second = await ask(gateway, body(), retry=1)
    await until(lambda: len(call.clients) == 2)
    second.leave()
    await until(lambda: len(call.clients) == 1)
    await asyncio.sleep(0.4)
    assert not call.is_abandoned and not call.has_lost_client
    held.go.set()

    assert b"sample 1" in await first.until(b"}]")
    assert call.was_delivered and len(gateway.session.calls) == 1


async def test_a_call_is_abandoned_when_all_of_its_clients_are_gone(
    gateway: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they go."""
    monkeypatch.setattr(call_requests, "ABANDON_SECONDS", 0.2)
    clients = [await ask(gateway, body())]
    await until(lambda: len(gateway.session.calls) == 1)
    (call,) = gateway.session.calls
    clients += [await ask(gateway, body(), retry=1)]
    await until(lambda: len(call.clients) == 2)
    for client in clients:
        client.leave()

    await until(lambda: call.is_abandoned)


async def test_marked_retries_of_equal_calls_have_an_answer_each(gateway: Any, held: Held) -> None:
    """Best-of-two whose connections both went dead without a word, and look alive; a second retry of one comes, too."""
    olds = [await ask(gateway, body()) for _ in range(2)]
    await until(lambda: held.num_asked == 2)
    news = [await ask(gateway, body(), retry=1) for _ in range(2)]
    await until(lambda: [len(call.clients) for call in gateway.session.calls] == [2, 2])
    news += [await ask(gateway, body(), retry=2)]
    await until(lambda: [len(call.clients) for call in gateway.session.calls] == [3, 2])
    held.go.set()

    said = [(await client.until(b"}]")).partition(b"sample ")[2][:1] for client in (*olds, *news)]
    assert sorted(said[:2]) == sorted(said[2:4]) == [b"1", b"2"]
    assert len(gateway.session.calls) == 2


async def test_one_marked_retry_more_than_there_are_calls_is_sampled(gateway: Any, held: Held) -> None:
    """Its first attempt may never have come here."""
    clients = [await ask(gateway, body())]
    await until(lambda: held.num_asked == 1)
    clients += [await ask(gateway, body(), retry=1) for _ in range(2)]

    await until(lambda: held.num_asked == 2)
    assert [len(call.clients) for call in gateway.session.calls] == [2, 1]
    assert not any(client.writer.is_closing() for client in clients)


async def test_the_same_bytes_to_another_dialect_are_another_call(gateway: Any, held: Held) -> None:
    """They mean something else there."""
    raw = body(max_tokens=5)
    first = await ask(gateway, raw)
    await until(lambda: held.num_asked == 1)
    first.leave()
    other = await ask(gateway, raw, path="/v1/messages")

    await until(lambda: held.num_asked == 2)
    assert not other.writer.is_closing()


async def test_a_joined_stream_says_at_once_what_is_there(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the grace in which a call could be refused: it was not."""

    async def reply(messages: Any, request: Any) -> dict[str, Any]:
        known = {"run": request.run, "episode": request.episode, "call": request.call}
        await gateway.manager.context.bus.hint(request.reply, encode(AnswerDelta(**known, content="seven")))
        await asyncio.sleep(10)
        return {"role": "assistant", "content": "seven"}

    gateway.manager.reply = reply
    lost = await ask(gateway, body(stream=True))
    await lost.until(b'"seven"')
    lost.leave()
    await until(lambda: gateway.session.calls[0].has_lost_client)

    await (await ask(gateway, body(stream=True))).until(b'"seven"', seconds=0.7)
    assert len(gateway.session.calls) == 1


async def test_a_call_that_could_not_be_said_yet_is_said_before_its_end(
    gateway: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal was away, and the client did not wait so long."""
    monkeypatch.setattr(call_requests, "ABANDON_SECONDS", 0.1)
    monkeypatch.setattr(call_requests, "RETRY_SECONDS", 0.1)
    journal, said, is_there = gateway.gateway._calls._journal, [], False
    say: Callable[[Any], Awaitable[Any]] = journal.publish

    async def flaky(event: Any) -> Any:
        if not is_there:
            raise Unavailable("away")
        said.append(type(event).__name__)
        return await say(event)

    monkeypatch.setattr(journal, "publish", flaky)
    client = await ask(gateway, body())
    await until(lambda: len(gateway.session.calls) == 1)
    client.leave()
    await until(lambda: gateway.session.calls[0].is_abandoned)
    is_there = True
    await until(lambda: len(said) == 2)

    assert said == ["CallRequested", "CallAbandoned"]


async def test_what_was_delivered_is_dropped_and_yet_gone_on_from(gateway: Any) -> None:
    """A session keeps the words of an answer once, and only for clients that point at it."""

    async def long(messages: Any, request: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": f"{len(messages)} " + "x" * 100_000}

    gateway.manager.reply = long
    async with gateway.openai(openai.AsyncOpenAI) as client:
        tracemalloc.start()
        for stream in (True, False) * 5:
            given = await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
            _ = [chunk async for chunk in given] if stream else None
        given, _ = None, None
        kept_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        first = await client.responses.create(model="m", input="hello")
        more = await client.responses.create(model="m", input="more", previous_response_id=first.id)
        alone = await client.responses.create(model="m", previous_response_id=more.id)

    assert [(call.answer, call.progress, call.was_delivered) for call in gateway.session.calls] == [(None, None, True)] * 13
    assert [each.output_text[:2] for each in (first, more, alone)] == ["1 ", "3 ", "4 "]
    assert kept_bytes < 600_000 + 10 * 100_000  # what the server in this process keeps of each answer, besides the libraries
