"""Whatever a server answers is a fault, a refusal or an answer, and never more than fits; no password is said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from seamlessflow_rollout_worker.engines.remote import http_client
from seamlessflow_rollout_worker.engines.remote.http_client import LONGEST_REASON, Http, ServerFault, ServerRefusal

Serve = Callable[..., Awaitable[Http]]
DEEP = b"[" * 200_000


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Makes a server that answers everything in one way, and connections to it."""
    made: list[Http | web.AppRunner] = []

    async def serves(status: int, body: bytes, *, endless: bool = False, content_type: str = "application/json") -> Http:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(status=status, headers={"Content-Type": content_type})
            await response.prepare(request)
            await response.write(body)
            while endless:
                await response.write(body)
            return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = Http(f"http://127.0.0.1:{runner.addresses[0][1]}", None, connect_seconds=2.0)
        made.extend((http, runner))
        return http

    yield serves
    for each in made:
        await (each.close() if isinstance(each, Http) else each.cleanup())


async def test_an_answer_without_an_end_is_a_fault_before_it_fills_our_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an order, where nothing else limits it but the time."""
    monkeypatch.setattr(http_client, "LONGEST_ANSWER", 1 << 16)
    http = await serve(200, b"x" * 4096, endless=True)

    with pytest.raises(ServerFault, match="more than 65536 bytes"):
        await http.ask("GET", "/health", seconds=20.0)


@pytest.mark.parametrize("kind", [ServerFault, ServerRefusal])
async def test_of_a_refusal_without_an_end_only_the_beginning_is_read(serve: Serve, kind: type[Exception]) -> None:
    """A request for tokens has no limit of time for it."""
    http = await serve(400 if kind is ServerRefusal else 500, b"no " * 1000, endless=True)

    with pytest.raises(kind) as said:
        async for _ in http.events("/generate", {}, silence_seconds=20.0, headers={}):
            pass
    assert len(str(said.value)) < LONGEST_REASON + 50


async def test_nesting_without_an_end_is_no_crash(serve: Serve) -> None:
    """Python gives up on such JSON in its own way."""
    assert await (await serve(200, DEEP)).ask("GET", "/openapi.json", seconds=5.0) is None
    http = await serve(200, b"data: " + DEEP + b"\n")
    with pytest.raises(ServerFault, match="no JSON"):
        async for _ in http.events("/generate", {}, silence_seconds=5.0, headers={}):
            pass


@pytest.mark.parametrize("content_type", ["text/plain; charset=none-such", "text/plain; charset=ascii"])
async def test_text_in_any_encoding_is_no_crash(serve: Serve, content_type: str) -> None:
    """An error page of a proxy between us."""
    http = await serve(502, b"\xff\xfe away", content_type=content_type)
    with pytest.raises(ServerFault, match="502"):
        await http.ask("GET", "/health", seconds=5.0)


@pytest.mark.parametrize("url", ["http://me:sesame@", "http://me:sesame@host:99999999", "http://me:sesame@host/ \r\n"])
async def test_a_url_that_cannot_be_used_is_a_fault_without_its_password(url: str) -> None:
    """The library's own words hold all of it."""
    http = Http(url, None, connect_seconds=0.5)
    with pytest.raises(ServerFault) as said:
        await http.ask("GET", "/health", seconds=1.0)
    await http.close()

    assert "sesame" not in str(said.value)
