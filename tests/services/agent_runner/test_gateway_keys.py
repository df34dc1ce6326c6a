"""Keys: wherever a client puts its own it is found, and nowhere is one repeated."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import pytest
import structlog

from seamlessflow import telemetry
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import Service
from seamlessflow_agent_runner.gateway.http_server import Gateway
from seamlessflow_agent_runner.gateway.previous_responses import PreviousResponses
from seamlessflow_agent_runner.gateway.sessions import Sessions

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}


async def post(gateway: Any, path: str, **headers: str) -> tuple[int, str]:
    root = gateway.gateway.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as http, http.post(root + path, json=HELLO, headers=headers) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/e/{key}/v1/embeddings", 404),
        ("//e/{key}/v1/embeddings", 404),
        ("/e/{key}", 405),
        ("/e/{key}x/v1/chat/completions", 401),
        ("/e/{key}x/v1/messages", 401),
    ],
)
async def test_a_refusal_repeats_no_key(gateway: Any, path: str, status: int) -> None:
    """Paths hold keys, or what is one but for a letter; errors end up in logs and traces of all kinds."""
    answer = await post(gateway, path.format(key=gateway.session.key))

    assert answer[0] == status and gateway.session.key not in answer[1]


async def test_a_failure_of_ours_logs_no_key(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback says where, without what the variables there held; nor does a session show its key."""
    monkeypatch.setattr(PreviousResponses, "completed", lambda *_: 1 / 0)
    telemetry.configure_logging(Settings(log_json=False), Service.AGENT_RUNNER)
    try:
        status, _ = await post(gateway, "/v1/chat/completions", Authorization=f"Bearer {gateway.session.key}")
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    said = capsys.readouterr().err

    assert status == 500 and "ZeroDivisionError" in said
    assert gateway.session.key not in re.sub(r"\W*\n\W*", "", said)
    assert gateway.session.key not in repr(gateway.session)


@pytest.mark.parametrize("path", ["/v1/messages", "/e/t1-0-0/v1/messages"])
@pytest.mark.parametrize("dummy", ["Authorization", "x-api-key"])
async def test_a_dummy_in_one_header_does_not_hide_the_key_in_the_other(gateway: Any, path: str, dummy: str) -> None:
    """Some clients fill both: Claude Code with ANTHROPIC_AUTH_TOKEN beside ANTHROPIC_API_KEY."""
    headers = {"Authorization": f"Bearer {gateway.session.key}", "x-api-key": gateway.session.key, dummy: "Bearer dummy"}

    assert (await post(gateway, path, **headers))[0] == 200
    assert (await post(gateway, path, **{dummy: "Bearer dummy"}))[0] == 401


async def test_an_address_of_ipv6_is_told_as_a_url_has_it(gateway: Any) -> None:
    """In brackets."""
    other = Gateway(Sessions(), gateway.gateway._calls)
    try:
        await other.open("::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    try:
        async with aiohttp.ClientSession() as http, http.head(other.base_url.removesuffix("v1")) as response:
            assert response.status == 200
        assert re.fullmatch(r"http://\[::1\]:\d+/v1", other.base_url)
    finally:
        await other.close()
