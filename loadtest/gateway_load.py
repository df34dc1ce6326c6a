"""The agents' side: conversations that grow by what was answered, and two ways to measure calls."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtest.gateway_client import Client
from loadtest.gateway_words import FRAME_TOKENS, text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one session's calls go: everything of the request that is the same for all of them."""

    url: str
    """Of the chat completions route."""
    key: str
    """Its API key."""
    model: str = "model"


@dataclass(frozen=True, slots=True)
class Load:
    """What a call looks like. ``turns`` measured calls of each conversation come after ``warm_turns`` that make it long."""

    name: str
    user_tokens: int
    answer_tokens: int
    warm_turns: int = 0
    turns: int = 1


class Conversation:
    """A body that grows. Each turn adds a user's message, and what the endpoint answered to it."""

    def __init__(self, endpoint: Endpoint, load: Load, seed: int, *, stream: bool = False) -> None:
        self.load, self._seed, self._turn = load, seed, 0
        head = {"model": endpoint.model, "max_tokens": load.answer_tokens, **({"stream": True} if stream else {})}
        self._messages = json.dumps({**head, "messages": []}).encode()[:-2]
        split = urlsplit(endpoint.url)
        self._request = (
            f"POST {split.path} HTTP/1.1\r\nHost: {split.netloc}\r\nAuthorization: Bearer {endpoint.key}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()

    def request(self) -> bytes:
        """The next call: the conversation so far and one more message."""
        self._add("user", text(self.load.user_tokens - FRAME_TOKENS, self._seed + 1_000_003 * self._turn))
        self._turn += 1
        body = self._messages + b"]}"
        return self._request + b"%d\r\n\r\n%b" % (len(body), body)

    def answered(self, content: str) -> None:
        """Take in an answer."""
        self._add("assistant", content)

    def _add(self, role: str, content: str) -> None:
        comma = b"" if self._messages.endswith(b"[") else b","
        self._messages += comma + json.dumps({"role": role, "content": content}).encode()


def content_of(body: bytes) -> str:
    """The text of a whole answer. Raises RuntimeError where there is none."""
    content = json.loads(body)["choices"][0]["message"]["content"]
    if not content:
        raise RuntimeError(f"an answer without text: {body[:300]!r}")
    return str(content)


OpenEndpoints = Callable[[int], Awaitable[Sequence[Endpoint]]]
"""Opens so many sessions."""


async def sequential(
    open_endpoints: OpenEndpoints, load: Load, num_conversations: int, seed: int, *, leads: bool
) -> list[float]:
    """Milliseconds of each measured call, one at a time. ``leads``: conversations are led from their beginning."""
    times: list[float] = []
    endpoints = await open_endpoints(num_conversations)
    client = await Client.open(endpoints[0].url)
    for number, endpoint in enumerate(endpoints):
        conversation = Conversation(endpoint, load, seed + number)
        await _warm(client, [conversation], leads=leads)
        for _ in range(load.turns):
            request = conversation.request()
            began = time.perf_counter()
            body = await client.call(request)
            times.append(1e3 * (time.perf_counter() - began))
            conversation.answered(content_of(body))
    client.close()
    return times


async def throughput(
    open_endpoints: OpenEndpoints, load: Load, num_clients: int, conversations_each: int, seed: int, *, leads: bool
) -> float:
    """Measured calls a second with ``num_clients`` in flight, until the first client has nothing left to ask."""
    endpoints = await open_endpoints(num_clients * conversations_each)
    conversations = [Conversation(endpoint, load, seed + number) for number, endpoint in enumerate(endpoints)]
    shares = [conversations[index::num_clients] for index in range(num_clients)]
    clients = [await Client.open(endpoints[0].url) for _ in range(num_clients)]
    await asyncio.gather(*(_warm(*each, leads=leads) for each in zip(clients, shares, strict=True)))
    ends: list[float] = []
    finished: list[float] = []

    async def measured(client: Client, share: list[Conversation]) -> None:
        for conversation in share:
            for _ in range(load.turns):
                body = await client.call(conversation.request())
                ends.append(time.perf_counter())
                conversation.answered(content_of(body))
        finished.append(ends[-1])

    began = time.perf_counter()
    await asyncio.gather(*(measured(*each) for each in zip(clients, shares, strict=True)))
    for client in clients:
        client.close()
    until = min(finished)
    return sum(end <= until for end in ends) / (until - began)


async def _warm(client: Client, conversations: list[Conversation], *, leads: bool) -> None:
    for conversation in conversations:
        for turn in range(conversation.load.warm_turns):
            request = conversation.request()
            answer = content_of(await client.call(request)) if leads else text(conversation.load.answer_tokens - 1, turn)
            conversation.answered(answer)
