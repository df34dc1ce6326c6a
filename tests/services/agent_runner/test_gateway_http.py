"""Bodies and routes at the level of HTTP: what is refused, and in which words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.errors import ConfigError
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.call_requests import call_seed
from seamlessflow_agent_runner.gateway.dialects.openai_chat import parse_chat
from seamlessflow_agent_runner.gateway.http_server import Gateway
from seamlessflow_agent_runner.gateway.sessions import Sessions, digest

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}

REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "must be JSON"),
    "NaN": (b'{"model": "m", "temperature": NaN, "messages": []}', "NaN is not JSON"),
    "half a character": (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', "must be JSON"),
    "huge number": (b'{"model": "m", "messages": [], "seed": 1' + b"0" * 30 + b"}", "must be JSON"),
    "too deep": (b"[" * 100_000, "must be JSON"),
    "deep": (b'{"model": "m", "messages": ' + b"[" * 300 + b"]" * 300 + b"}", "nest at most 100"),
    "a list": ([], "must be a JSON object"),
    "no model": ({**HELLO, "model": None}, "model must be"),
    "no messages": ({"model": "m"}, "at least one message"),
    "empty messages": ({**HELLO, "messages": []}, "at least one message"),
    "message is text": ({**HELLO, "messages": ["hi"]}, r"messages\[0\] must be an object"),
    "unknown role": ({**HELLO, "messages": [{"role": "bot", "content": "x"}]}, "must be one of system"),
    "no content": ({**HELLO, "messages": [{"role": "user"}]}, "got null"),
    "image": ({**HELLO, "messages": [IMAGE]}, "no images, audio or files"),
    "tool result without id": ({**HELLO, "messages": [{"role": "tool", "content": "7"}]}, "tool_call_id"),
    "tool calls by user": ({**HELLO, "messages": [{"role": "user", "content": "", "tool_calls": []}]}, "role assistant"),
    "ill-formed tool call": ({**HELLO, "messages": [{"role": "assistant", "tool_calls": [{}]}]}, "name and arguments"),
    "n": ({**HELLO, "n": 2}, "n must be 1"),
    "stop": ({**HELLO, "stop": ["\n", 3]}, "stop must be a text or a list of at most 16 texts"),
    "json_object": ({**HELLO, "response_format": {"type": "json_object"}}, "constrained decoding"),
    "json_schema": ({**HELLO, "response_format": {"type": "json_schema", "json_schema": {}}}, "constrained decoding"),
    "tool_choice": ({**HELLO, "tool_choice": "calc"}, "tool_choice must be 'auto'"),
    "parallel_tool_calls": ({**HELLO, "parallel_tool_calls": "no"}, "parallel_tool_calls must be true or false"),
    "functions": ({**HELLO, "functions": [{}]}, "use tools"),
    "ill-formed tool": ({**HELLO, "tools": [{"type": "web_search"}]}, r"tools\[0\] must be"),
    "tools are text": ({**HELLO, "tools": "calc"}, "tools must be a list"),
    "audio": ({**HELLO, "modalities": ["text", "audio"]}, "only text"),
    "stream": ({**HELLO, "stream": "yes"}, "true or false"),
    "stream_options": ({**HELLO, "stream_options": {"include_usage": True}}, "needs stream = true"),
    "max_tokens": ({**HELLO, "max_tokens": 0}, "at least 1"),
    "max_completion_tokens": ({**HELLO, "max_completion_tokens": "9"}, "at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_a_body_that_cannot_be_answered_is_refused_with_what_to_change(gateway: Any, case: str) -> None:
    """400 in OpenAI's form, and nothing reaches the manager."""
    body, words = REFUSED[case]
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    status, said = await post(gateway, raw)

    assert status == 400
    assert set(said["error"]) == {"message", "type", "param", "code"}
    with pytest.raises(ApiError, match=words):
        parse_chat(raw)
    assert gateway.manager.calls == []


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1}, {"stop": None}, {"response_format": {"type": "text"}}, {"tools": []}, {"tool_choice": "none"},
        {"logprobs": False}, {"top_logprobs": None}, {"parallel_tool_calls": True}, {"unknown_field": {"a": 1}},
    ],
)  # fmt: skip
def test_fields_that_change_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    """Clients send their defaults; an agent must not break on them."""
    assert parse_chat(json.dumps({**HELLO, **harmless}).encode()).messages == tuple(HELLO["messages"])


@pytest.mark.parametrize("turn", ["c1", [1], {"a": 1}, 7, None])
async def test_a_field_that_looks_like_ours_is_only_a_field(gateway: Any, turn: Any) -> None:
    """An agent may put anything into its messages; only ids that it brings back point at a turn."""
    history = [*HELLO["messages"], {"role": "assistant", "turn": turn}, {"role": "user", "content": "and?"}]

    assert (await post(gateway, json.dumps({**HELLO, "messages": history}).encode()))[0] == 200


@pytest.mark.parametrize("headers", [{"Content-Encoding": "gzip"}, {"x-stainless-retry-count": "9" * 5000}])
async def test_strange_headers_are_no_failure_of_ours(gateway: Any, headers: dict[str, str]) -> None:
    """A body that is not what its header says is refused; a count without meaning is none."""
    key = {"Authorization": f"Bearer {gateway.session.key}"}

    status, _ = await post(gateway, json.dumps(HELLO).encode(), {**key, **headers})

    assert status == (400 if "Content-Encoding" in headers else 200)


async def test_refusals_keep_nothing_of_the_calls_before_them(gateway: Any) -> None:
    """An exception that is raised again keeps the frames of every time before, and bodies with them."""
    gateway.sessions.close(gateway.session)
    refused = []
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            gateway.sessions.of({"x-api-key": gateway.session.key})
        refused.append(caught.value)

    assert refused[0] is not refused[1] and refused[0].status == 409


async def test_unknown_routes_and_methods_are_refused_in_the_same_form(gateway: Any) -> None:
    """404 and 405 as JSON, saying what is served."""
    async with aiohttp.ClientSession() as http:
        for method, path, status in (("POST", "/embeddings", 404), ("GET", "/chat/completions", 405)):
            async with http.request(method, gateway.gateway.base_url + path) as response:
                assert response.status == status
                assert "POST /v1/chat/completions" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("name", ["tiny", "org/model", "a/b/c%20d"])
async def test_a_model_is_shown_by_its_name(gateway: Any, name: str) -> None:
    """Slashes are part of many names."""
    url, headers = f"{gateway.gateway.base_url}/models/{name}", {"x-api-key": gateway.session.key}
    async with aiohttp.ClientSession() as http, http.get(aiohttp.client.URL(url, encoded=True), headers=headers) as response:
        assert (await response.json())["id"] == name.replace("%20", " ")


async def test_the_key_is_taken_from_x_api_key_too(gateway: Any) -> None:
    """Anthropic's clients send it there."""
    status, said = await post(gateway, json.dumps(HELLO).encode(), headers={"x-api-key": gateway.session.key})

    assert (status, said["choices"][0]["message"]["content"]) == (200, "echo: hello")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"Authorization": "Basic x"}, {"x-api-key": "sf-"}])
async def test_without_the_right_key_nothing_is_answered(gateway: Any, headers: dict[str, str]) -> None:
    """401 in OpenAI's form."""
    status, said = await post(gateway, json.dumps(HELLO).encode(), headers=headers)

    assert (status, said["error"]["code"]) == (401, "invalid_api_key")


async def test_a_port_in_use_is_said_with_the_setting_to_change(gateway: Any) -> None:
    """The address, and the variable that sets it."""
    port = int(gateway.gateway.base_url.rsplit(":", 1)[1].split("/")[0])

    with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} is in use; set SEAMLESSFLOW_GATEWAY_PORT"):
        await Gateway(Sessions(), gateway.gateway._calls).open("127.0.0.1", port)


async def test_a_held_call_shows_signs_of_life_before_its_json(gateway: Any) -> None:
    """White space, which JSON allows in front."""

    async def slow(messages: Any, request: Any) -> dict[str, Any]:
        await asyncio.sleep(2.5)
        return {"role": "assistant", "content": "x"}

    gateway.manager.reply = slow
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            gateway.gateway.base_url + "/chat/completions",
            json=HELLO,
            headers={"Authorization": f"Bearer {gateway.session.key}"},
        ) as response,
    ):
        raw = await response.read()

    assert raw.startswith(b" ") and json.loads(raw)["choices"][0]["message"]["content"] == "x"


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=5))
def test_a_digest_does_not_depend_on_the_order_of_keys(message: dict[str, Any]) -> None:
    """Clients order keys as they like."""
    assert digest(message) == digest(dict(reversed(message.items())))


@given(st.integers(), st.integers(min_value=0), st.integers(min_value=0))
def test_seeds_of_calls_differ_and_repeat(seed: int, one: int, other: int) -> None:
    """Equal for the same call of the same episode, different otherwise, exact in any language."""
    assert (call_seed(seed, one) == call_seed(seed, other)) == (one == other)
    assert 0 <= call_seed(seed, one) < 1 << 53


async def post(gateway: Any, raw: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    known = {"Authorization": f"Bearer {gateway.session.key}"} if headers is None else headers
    url = gateway.gateway.base_url + "/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, data=raw, headers=known) as response:
        return response.status, await response.json()
