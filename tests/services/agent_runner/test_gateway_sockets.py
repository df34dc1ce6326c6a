"""Clients that are no HTTP clients, or stop half-way: none of them is a failure, and none is in anybody's way.

slow loris              held open while others are answered
half a body             nothing is asked of the manager
garbage                 400 and an end, whatever came before it on the connection
two requests at once    both answered, in order
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.services.agent_runner.fuzzed import CHAT, COMPLETIONS, MESSAGES, RESPONSES, VALID

ORDINARY = {"model": "m", "messages": [{"role": "user", "content": "still there?"}]}
NUM_CLIENTS = 300
NUM_SLOW = 100
QUIET_SECONDS = 0.7


async def says_ok(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "ok"}


async def exchange(gateway: Any, *parts: bytes, seconds: float = 0.0) -> bytes:
    """What comes back of bytes that are sent part by part, until nothing more comes. ``seconds``: between the parts."""
    reader, writer = await connect(gateway)
    answer = b""
    with suppress(ConnectionError, TimeoutError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(seconds)
        while more := await asyncio.wait_for(reader.read(65536), QUIET_SECONDS):
            answer += more
    writer.close()
    return answer


async def connect(gateway: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(gateway.gateway.base_url)
    return await asyncio.open_connection(where.hostname, where.port)


def post(gateway: Any, path: str = CHAT, body: bytes | None = None, **headers: str) -> bytes:
    """A request as it should be, its connection closed behind it unless ``headers`` say otherwise."""
    raw = json.dumps(ORDINARY if path == CHAT else VALID[path]).encode() if body is None else body
    given = {
        "Host": "x",
        "x-api-key": gateway.session.key,
        "Content-Length": str(len(raw)),
        "Connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + raw


def statuses(answer: bytes) -> Sequence[int]:
    """Of all responses in what came back."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


async def assert_goes_on(gateway: Any) -> None:
    """An ordinary call of the same episode, at once."""
    async with (
        asyncio.timeout(5),
        aiohttp.ClientSession() as http,
        http.post(
            gateway.gateway.base_url + "/chat/completions", json=ORDINARY, headers={"x-api-key": gateway.session.key}
        ) as it,
    ):
        assert (await it.json())["choices"][0]["message"]["content"] == "ok"


def assert_nothing_failed(logs: list[Any]) -> None:
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


async def test_slow_clients_are_in_nobodys_way(gateway: Any) -> None:
    """Headers or bodies that never come to an end, on a hundred connections."""
    gateway.manager.reply = says_ok
    held = []
    for number in range(NUM_SLOW):
        reader, writer = await connect(gateway)
        whole = post(gateway)
        writer.write(whole[: number * len(whole) // NUM_SLOW])
        await writer.drain()
        held.append((reader, writer))
    for _ in range(5):
        await assert_goes_on(gateway)
        for _, writer in held[::7]:
            writer.write(b"x")
    assert len(gateway.manager.calls) == 5
    for _, writer in held:
        writer.close()
    await assert_goes_on(gateway)


async def test_a_body_that_dribbles_in_is_refused(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, and its connection ends; nothing was asked."""
    monkeypatch.setattr("seamlessflow_agent_runner.gateway.error_middleware.BODY_SECONDS", 0.3)
    whole = post(gateway, Connection="keep-alive")
    began = len(whole) - 10

    answer = await exchange(gateway, whole[:began], *(whole[at : at + 1] for at in range(began, len(whole) - 1)), seconds=0.1)

    assert statuses(answer) == [408] and b"body_too_slow" in answer
    assert gateway.manager.calls == []


@pytest.mark.parametrize("path", VALID)
async def test_half_a_body_asks_nothing(gateway: Any, path: str) -> None:
    """Cut anywhere; the connection's end is not the body's."""
    gateway.manager.reply = says_ok
    whole = post(gateway, path)
    begins = whole.index(b"\r\n\r\n") + 4
    cuts = [whole[:at] for at in range(begins, len(whole), max(1, (len(whole) - begins) // 20))]
    with capture_logs() as logs:
        answers = await asyncio.gather(
            *(exchange(gateway, cut) for cut in cuts[::2]), *(drop(gateway, cut) for cut in cuts[1::2])
        )
        await asyncio.sleep(0.1)

    assert all(status < 500 for answer in answers for status in statuses(answer))
    assert gateway.manager.calls == []
    assert_nothing_failed(logs)
    await assert_goes_on(gateway)


async def drop(gateway: Any, raw: bytes) -> bytes:
    """Send, and be gone without a word."""
    _, writer = await connect(gateway)
    writer.write(raw)
    await writer.drain()
    writer.transport.abort()
    return b""


async def test_two_requests_on_one_connection_are_answered_in_order(gateway: Any) -> None:
    """Also where the second came before the first was answered, and where garbage follows."""
    gateway.manager.reply = says_ok
    first = post(gateway, Connection="keep-alive")

    answers = [
        await exchange(gateway, first + post(gateway, MESSAGES)),
        await exchange(gateway, first + post(gateway, RESPONSES, b"{}")),
        await exchange(gateway, first + first, b"\x16\x03\x01 GARBAGE\r\n\r\n", seconds=0.3),
    ]

    assert [list(statuses(answer)) for answer in answers] == [[200, 200], [200, 400], [200, 200, 400]]
    await assert_goes_on(gateway)


def strange(gateway: Any) -> dict[str, bytes]:
    body = json.dumps(ORDINARY).encode()
    chunked = {"Content_Length": "", "Transfer_Encoding": "chunked"}
    return {
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        "nothing": b"\r\n\r\n",
        "zeros": b"\x00" * 100,
        "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "another version": post(gateway).replace(b"HTTP/1.1", b"HTTP/9.9"),
        "an old version": post(gateway).replace(b"HTTP/1.1", b"HTTP/1.0"),
        "unknown method": post(gateway).replace(b"POST", b"BREW"),
        "tunnel": post(gateway).replace(b"POST /", b"CONNECT /"),
        "whole address": post(gateway).replace(b"POST /", b"POST http://x/"),
        "zero in the path": post(gateway).replace(b"/v1", b"/\x00/v1"),
        "no character in the path": post(gateway).replace(b"/v1", b"/%ff%fe/v1"),
        "long path": post(gateway).replace(b"/v1", b"/" + b"x" * 9000),
        "long header": post(gateway, x_long="x" * 20_000),
        "many headers": post(gateway, **{f"x_{number}": "x" for number in range(2000)}),
        "header without a name": post(gateway).replace(b"Host: x", b": x"),
        "no character in a header": post(gateway).replace(b"Host: x", b"Host: \xff\xfe\xed\xa0\x80"),
        "no character in the key": post(gateway).replace(gateway.session.key.encode(), b"sf-\xff\xed\xa0\x80"),
        "two lengths": post(gateway).replace(b"Host: x", b"Content-Length: 3"),
        "negative length": post(gateway, Content_Length="-1"),
        "length of another alphabet": post(gateway).replace(b"Content-Length: ", b"Content-Length: \xc2\xb2"),
        "length beyond all": post(gateway, Content_Length="9" * 30),
        "length and chunks": post(gateway, Transfer_Encoding="chunked"),
        "chunks": post(gateway, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), **chunked),
        "broken chunks": post(gateway, body=b"zz\r\n{}\r\n0\r\n\r\n", **chunked),
        "huge chunk": post(gateway, body=b"f" * 30 + b"\r\n{}", **chunked),
        "chunks without end": post(gateway, body=b"2\r\n{}\r\n", **chunked),
        "expects to go on": post(gateway, Expect="100-continue"),
        "expects a miracle": post(gateway, Expect="a miracle"),
        "another protocol, please": post(gateway, Connection="Upgrade", Upgrade="websocket"),
        "compressed garbage": post(gateway, Content_Encoding="deflate"),
        "a form": post(gateway, Content_Type="multipart/form-data; boundary=x"),
        "another alphabet": post(gateway, Content_Type="application/json; charset=utf-7"),
    }


async def test_what_is_hardly_http_is_refused(gateway: Any) -> None:
    """With a status below 500, or without a word."""
    gateway.manager.reply = says_ok
    with capture_logs() as logs:
        named = strange(gateway)
        answers = await asyncio.gather(*(exchange(gateway, raw) for raw in named.values()))
        for name, answer in zip(named, answers, strict=True):
            assert all(status < 500 for status in statuses(answer)), (name, answer)
    assert_nothing_failed(logs)
    await assert_goes_on(gateway)


@pytest.mark.slow
async def test_hundreds_of_broken_clients_lose_no_episode(gateway: Any) -> None:
    """Requests with bytes changed, cut and left hanging, many at a time."""
    gateway.manager.reply = says_ok
    chance = random.Random()
    limit = asyncio.Semaphore(16)
    sound = [post(gateway, path) for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)] + list(strange(gateway).values())

    async def one() -> None:
        raw = bytearray(chance.choice(sound))
        for _ in range(chance.randrange(4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        cut = bytes(raw[: chance.randrange(1, len(raw) + 1)]) if chance.random() < 0.5 else bytes(raw)
        async with limit:
            way = chance.randrange(3)
            if way == 0:
                answer = await drop(gateway, cut)
            elif way == 1:
                answer = await exchange(gateway, cut)
            else:
                answer = await exchange(gateway, *(cut[at : at + 40] for at in range(0, len(cut), 40)), seconds=0.002)
        assert all(status < 500 for status in statuses(answer)), (cut, answer)

    with capture_logs() as logs:
        await asyncio.gather(*(one() for _ in range(NUM_CLIENTS)))
    assert_nothing_failed(logs)
    await assert_goes_on(gateway)
