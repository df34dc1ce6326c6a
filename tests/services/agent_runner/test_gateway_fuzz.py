"""Whatever is sent, the gateway answers it or says what is wrong, and the episode goes on.

never                a status of 500 or more, a handler that failed, an error that is not in the dialect's form
always               an answer only with a key that may ask, in the episode it belongs to
afterwards           an ordinary call of the same episode is answered
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.services.agent_runner.fuzzed import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    VALID,
    Keys,
    Request,
    drawn,
    nested,
    requests,
    varied,
)

MANY = 10_400
FEW = 600
SIDE_BY_SIDE = 12
ORDINARY = {"model": "m", "messages": [{"role": "user", "content": "still there?"}]}


async def says_ok(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "ok", "reasoning_content": "hm"}


class Fuzzed:
    """A gateway with an episode of ours, one of somebody else, and one that is over."""

    def __init__(self, gateway: Any, make_opened: Any) -> None:
        gateway.manager.reply = says_ok
        self.gateway = gateway
        self.others = gateway.sessions.open(make_opened("t1-1-0"), "tiny")
        ended = gateway.sessions.open(make_opened("t1-2-0"), "tiny")
        gateway.sessions.close(ended)
        ours = gateway.session
        self.keys = Keys(ours.key, ours.opened.episode, self.others.key, "t1-1-0", ended.key)
        self.statuses = Counter[int]()

    async def send_all(self, all_of_them: list[Request]) -> None:
        left = iter(all_of_them)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

            async def sender() -> None:
                for request in left:
                    await self.send(http, request)

            await asyncio.gather(*(sender() for _ in range(SIDE_BY_SIDE)))

    async def send(self, http: aiohttp.ClientSession, request: Request) -> None:
        url = self.gateway.gateway.base_url.removesuffix("/v1") + request.path
        try:
            async with http.request(
                request.method, aiohttp.client.URL(url, encoded=True), data=request.raw, headers=request.headers
            ) as response:
                body = await response.read()
        except aiohttp.ClientError as broken:
            raise AssertionError(f"no answer to {request}") from broken
        self.statuses[response.status] += 1
        assert response.status < 500, f"{response.status} to {request}: {body!r}"
        if request.method == "HEAD":
            return
        if response.status == 200:
            assert_is_an_answer(request, response.content_type, body)
        else:
            if "Content-Encoding" in request.headers and response.content_type == "text/plain":
                return  # refused by the HTTP parser, which speaks no dialect
            assert response.content_type == "application/json", f"{response.status} to {request}: {body!r}"
            error = json.loads(body)["error"]
            assert 0 < len(error["message"]) < 1000, request
            assert ("type" in json.loads(body)) == ("/v1/messages" in request.path), request

    async def goes_on(self) -> None:
        """The episode, with an ordinary call of each key."""
        async with aiohttp.ClientSession() as http:
            for key in (self.keys.ours, self.keys.others):
                url, headers = f"{self.gateway.gateway.base_url}/chat/completions", {"x-api-key": key}
                async with http.post(url, json=ORDINARY, headers=headers) as response:
                    assert (await response.json())["choices"][0]["message"]["content"] == "ok"
        asked = Counter(call.episode for call in self.gateway.manager.calls)
        assert asked == {"t1-0-0": len(self.gateway.session.calls), "t1-1-0": len(self.others.calls)}
        assert self.gateway.session.close() == ()


def assert_is_an_answer(request: Request, kind: str, body: bytes) -> None:
    """Whole, or a stream to its very end."""
    if kind == "application/json":
        assert isinstance(json.loads(body), dict), request
        return
    ends = {CHAT: b"[DONE]", COMPLETIONS: b"[DONE]", RESPONSES: b"response.completed", MESSAGES: b"message_stop"}
    end = next(end for path, end in ends.items() if request.path.endswith(path))
    assert kind == "text/event-stream" and end in body and body.endswith(b"\n\n"), request


def assert_nothing_failed(logs: list[Any]) -> None:
    """Failures that a status does not show."""
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


async def fuzz(gateway: Any, make_opened: Any, number: int, *, anew: bool) -> None:
    fuzzed = Fuzzed(gateway, make_opened)
    chance = random.Random() if anew else random.Random(1)
    few = await asyncio.to_thread(drawn, requests(fuzzed.keys), number // 4, anew=anew)
    all_of_them = [each for request in few for each in varied(request, chance)]
    with capture_logs() as logs:
        await fuzzed.send_all(all_of_them)
    assert_nothing_failed(logs)
    await fuzzed.goes_on()
    print(f"{sum(fuzzed.statuses.values())} requests: {dict(sorted(fuzzed.statuses.items()))}")
    assert {200, 400, 401} <= set(fuzzed.statuses) and sum(fuzzed.statuses.values()) == len(all_of_them)


async def test_some_hundred_strange_requests_are_answered_or_refused(gateway: Any, make_opened: Any) -> None:
    """The same ones each time."""
    await fuzz(gateway, make_opened, FEW, anew=False)


@pytest.mark.slow
async def test_ten_thousand_strange_requests_are_answered_or_refused(gateway: Any, make_opened: Any) -> None:
    """Others each time."""
    await fuzz(gateway, make_opened, MANY, anew=True)


def body_of(path: str, **fields: Any) -> bytes:
    return json.dumps({**VALID[path], **fields}).encode()


MILLION = 1_000_000
TOOL = b'{"type":"function","name":"f","function":{"name":"f"},"input_schema":{}},'
HUGE: dict[str, tuple[str, bytes, int]] = {
    "a million tools": (CHAT, b'{"model":"m","messages":[],"tools":[%s{}]}' % (b"{}," * MILLION), 400),
    "a million messages": (MESSAGES, b'{"model":"m","messages":[%s{}]}' % (b"{}," * MILLION), 400),
    "a million stop texts": (CHAT, body_of(CHAT, stop=["x"] * MILLION), 400),
    "ten megabytes of prompt": (COMPLETIONS, body_of(COMPLETIONS, prompt="x" * 10_000_000), 200),
    "ten megabytes of input": (RESPONSES, body_of(RESPONSES, input="é" * 1_700_000), 200),  # six bytes each
    "ten megabytes of depth": (MESSAGES, b"[" * 10_000_000, 400),
    "ten megabytes of digits": (CHAT, b'{"model":' + b"9" * 10_000_000 + b"}", 400),
    "more than is read": (CHAT, b" " * (16 << 20) + b"{}", 413),
}


@pytest.mark.slow
async def test_huge_requests_are_answered_or_refused(gateway: Any, make_opened: Any) -> None:
    """One after the other, and all tools in full for each dialect that has tools."""
    fuzzed = Fuzzed(gateway, make_opened)
    tools = b"[" + (TOOL * 200_000)[:-1] + b"]"
    more = {f"tools by {path}": (path, body_of(path, tools=0).replace(b'"tools": 0', b'"tools":' + tools), 400) for path in
            (CHAT, RESPONSES, MESSAGES)}  # fmt: skip
    with capture_logs() as logs:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            for name, (path, raw, status) in {**HUGE, **more}.items():
                before = Counter(fuzzed.statuses)
                await fuzzed.send(http, Request("POST", path, raw, {"x-api-key": fuzzed.keys.ours}))
                assert fuzzed.statuses - before == {status: 1}, name
    assert_nothing_failed(logs)
    await fuzzed.goes_on()


@pytest.mark.parametrize("path", VALID)
@pytest.mark.parametrize("levels", [95, 99, 101, 300, 505, 511, 900, 990, 3000])
async def test_no_depth_is_a_failure_in_any_place(gateway: Any, path: str, levels: int, make_opened: Any) -> None:
    """Also where a field is passed on as it came, and where the parser would take it."""
    fuzzed = Fuzzed(gateway, make_opened)
    deep = json.dumps(nested(min(levels, 900))) if levels < 900 else "[" * levels + "1" + "]" * levels
    raws = [json.dumps({**VALID[path], field: "@"}).replace('"@"', deep) for field in (*VALID[path], "unknown")]
    schema = body_of(path).decode().replace('{"type": "object"', '{"x": ' + deep + ', "type": "object"')
    with capture_logs() as logs:
        await fuzzed.send_all([Request("POST", path, raw.encode(), {"x-api-key": fuzzed.keys.ours}) for raw in (*raws, schema)])
    assert_nothing_failed(logs)
    await fuzzed.goes_on()
