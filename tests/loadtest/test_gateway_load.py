"""The benchmark's own instruments: what is sent, what is read, and what is said of a peer that is not there."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.gateway_client import Client
from loadtest.gateway_load import Conversation, Endpoint, Load, content_of
from loadtest.gateway_peers import PEERS, Peer, RunningPeer
from loadtest.gateway_words import make_tokenizer, text
from seamlessflow.errors import Unavailable

LOAD = Load("some", user_tokens=20, answer_tokens=5)


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[str]:
    """The URL of a server that answers every request with these parts, one after the other."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            length = 0
            while (line := await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
            await reader.readexactly(length)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"


@given(st.integers(1, 300), st.integers())
def test_a_text_has_as_many_tokens_as_it_says(num_tokens: int, seed: int) -> None:
    """So the loads are what they are called; another seed is another text."""
    assert len(make_tokenizer().encode(text(num_tokens, seed)).ids) == num_tokens


def test_a_conversation_grows_by_what_was_answered() -> None:
    """Each request is whole HTTP with valid JSON: all that was said before, then something new."""
    conversation = Conversation(Endpoint("http://127.0.0.1:1/v1/chat/completions", "key"), LOAD, seed=1)
    first = conversation.request()
    conversation.answered('an "answer"\n')
    head, _, body = conversation.request().partition(b"\r\n\r\n")
    messages = json.loads(body)["messages"]

    assert f"Content-Length: {len(body)}".encode() in head and b"Authorization: Bearer key" in head
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0] == json.loads(first.partition(b"\r\n\r\n")[2])["messages"][0]
    assert messages[1]["content"] == 'an "answer"\n'
    assert messages[0]["content"] != messages[2]["content"]


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b'"the ', b'end"'),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n"the\r\n', b'5\r\n end"\r\n', b"0\r\n\r\n"),
        (b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9;x=y\r\n"the end"\r\n0\r\n\r\n',),
    ],
)
async def test_the_client_reads_whole_and_chunked_answers_in_any_pieces(parts: tuple[bytes, ...]) -> None:
    """One connection serves one call after the other, and what is to be marked gets its time."""
    async with answering(*parts) as url:
        client = await Client.open(url)
        for _ in range(2):
            request = Conversation(Endpoint(url, "key"), LOAD, seed=1).request()
            assert json.loads(await client.call(request, re.compile(rb"\"the"))) == "the end"
        assert 0 < client.marked_at <= client.ended_at
        client.close()


async def test_an_answer_that_is_no_answer_fails_the_benchmark() -> None:
    """A figure over errors would be a lie."""
    async with answering(b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno") as url:
        client = await Client.open(url)
        with pytest.raises(RuntimeError, match="500 Oh"):
            await client.call(Conversation(Endpoint(url, "key"), LOAD, seed=1).request())
        client.close()
    with pytest.raises(RuntimeError, match="without text"):
        content_of(b'{"choices": [{"message": {"content": null}}]}')


async def test_a_peer_that_cannot_be_started_is_unavailable_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out; nothing stands in for it."""
    program = tmp_path / "bin" / "peer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'I need a key' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("loadtest.gateway_peers.environment_of", lambda name, python: tmp_path)
    with pytest.raises(Unavailable, match="I need a key"):
        await RunningPeer.open(Peer("some", ("peer",), "/", "/"), tmp_path, "http://127.0.0.1:1")


def test_every_peer_is_pinned() -> None:
    """The same versions are measured everywhere."""
    for peer in PEERS:
        lines = (Path("loadtest/peers") / f"{peer.name}.txt").read_text().splitlines()
        wanted = [line for line in lines if line and not line.startswith("#")]
        assert wanted and all("==" in line for line in wanted)
