"""HTTP as far as remote engines need it: an order and its answer, and a stream of JSON events.

The key goes into a header and nowhere else: no message and no log line holds it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from seamlessflow.redaction import without_password

# What can go wrong with a server of a remote engine. None of these leaves the engine.
#
# ServerFault       it is away, dying or overloaded: the same request may succeed elsewhere, or here later
# └ ServerNonsense  its answer cannot be used: it lacks what was asked for, or says what was not
# ServerRefusal     it understood and says no (4xx): the same request gets the same answer


class ServerFault(Exception):
    """A server did not do what it should; it may later."""


class ServerNonsense(ServerFault):
    """An answer that cannot be used."""


class ServerRefusal(Exception):
    """A server says that a request cannot be served."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status


LONGEST_LINE = 64 << 20
"""Bytes of one event. SGLang repeats the whole answer in each event unless told not to; beyond this something is wrong."""
KEPT_SECONDS = 3.0
"""How long an idle connection is used again: less than the 5 s after which these servers close one."""
LONGEST_ANSWER = 16 << 20
"""Bytes of the answer to an order: a list of endpoints is half a megabyte."""
LONGEST_REASON = 300
"""Characters of a server's answer that stand in our messages."""
_FAULTY = (408, 425, 429)
"""Statuses below 500 that say "not now"."""


class Http:
    """One server's connections. Make it inside a running loop, and close it."""

    def __init__(self, url: str, api_key: str | None, *, connect_seconds: float) -> None:
        self.name = without_password(url)
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connect_seconds = connect_seconds
        # No limit here: how many run side by side is decided by slots, and an order must never wait behind requests.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS)
        self._session = aiohttp.ClientSession(headers=headers, connector=connector)

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self, method: str, path: str, *, seconds: float, json_body: object = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON of the answer; None where it is none. Raises ServerFault or ServerRefusal."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=self._connect_seconds)
        async with self._sent(method, path, timeout, json_body=json_body, query=query) as response:
            text = await _whole(response.content)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    async def events(
        self, path: str, body: object, *, silence_seconds: float, headers: Mapping[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer, ``[DONE]`` left out. Raises ServerFault or ServerRefusal.

        A stream that ends in the middle of an event is a fault; one that ends between two is for the caller to judge.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds, sock_read=silence_seconds)
        async with self._sent("POST", path, timeout, json_body=body, headers=headers) as response:
            async for line in _lines(response.content):
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    yield _event(data)

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        timeout: aiohttp.ClientTimeout,
        *,
        json_body: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response that says yes. What breaks while it is read is a fault, too."""
        url = self._url + path
        try:
            async with self._session.request(
                method, url, json=json_body, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status >= 300:
                    raise _no(response.status, await _beginning(response.content))
                yield response
        except TimeoutError as wrong:
            raise ServerFault(f"{path}: nothing came in time") from wrong
        except aiohttp.InvalidURL:  # its words hold the URL, and that may hold a password
            raise ServerFault(f"{path}: {self.name} is no URL") from None
        except (aiohttp.ClientError, OSError) as wrong:
            raise ServerFault(f"{path}: {type(wrong).__name__}: {wrong}") from wrong


def _no(status: int, text: str) -> ServerFault | ServerRefusal:
    reason = " ".join(text.split())[:LONGEST_REASON]
    if 400 <= status < 500 and status not in _FAULTY:
        return ServerRefusal(status, reason)
    return ServerFault(f"HTTP {status}: {reason}")


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """All of an answer; a server that does not stop must not fill our memory."""
    pieces, size = [], 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > LONGEST_ANSWER:
            raise ServerFault(f"an answer of more than {LONGEST_ANSWER} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _beginning(content: aiohttp.StreamReader) -> str:
    """As much of a refusal as our messages hold; the connection is not used again where there is more."""
    text = b""
    while len(text) < LONGEST_REASON and (piece := await content.read(4 * LONGEST_REASON)):
        text += piece
    return text.decode(errors="replace")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines; what stands behind the last line break is one that was cut."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > LONGEST_LINE:
            raise ServerFault(f"an event of more than {LONGEST_LINE} bytes")
    if rest.strip():
        raise ServerFault("the stream was cut in the middle of an event")


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise ServerFault(f"an event is no JSON: {wrong}") from wrong
    if not isinstance(event, dict):
        raise ServerFault(f"an event is {type(event).__name__}, expected an object")
    if error := event.get("error"):
        raise ServerFault(f"the stream says: {str(error)[:LONGEST_REASON]}")
    return event
