"""Other ends of connections that are gone without a word, or do not read: none of them holds anything for long."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from seamlessflow_agent_runner.gateway import response_writer
from tests.services.agent_runner.sockets import Client, ask, body, until

BIG = 30 << 20
"""Bytes; more than all buffers between a server and its client hold."""


async def big(messages: Any, request: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x" * BIG}


async def medium(messages: Any, request: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x" * 1_000_000}


async def ask_and_read_no_further(gateway: Any, *, stream: bool) -> tuple[Any, Client]:
    """The call, and the client it is stuck with."""
    gateway.manager.reply, gateway.manager.with_hints = big, False
    client = await ask(gateway, body(stream=stream))
    await client.reader.read(100)
    client.writer.transport.pause_reading()
    await until(lambda: any(each.get_write_buffer_size() for call in gateway.session.calls for each in call.clients))
    return gateway.session.calls[0], client


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="not on this system")
async def test_a_connection_on_which_nothing_is_acknowledged_is_broken_by_the_system(gateway: Any) -> None:
    """Its other end may be gone without a word."""

    async def held(messages: Any, request: Any) -> dict[str, Any]:
        await asyncio.sleep(30)
        return {}

    gateway.manager.reply = held
    client = await ask(gateway, body())
    await until(lambda: bool(gateway.session.calls and gateway.session.calls[0].clients))
    (accepted,) = gateway.session.calls[0].clients

    assert patience_of(accepted) == response_writer.UNACKNOWLEDGED_SECONDS
    client.leave()


def patience_of(accepted: asyncio.Transport) -> float:
    option: int = accepted.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return option / 1000


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="not on this system")
async def test_a_client_without_room_is_not_taken_for_a_dead_one(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system cannot tell them apart: it would cut off an agent that runs a tool while the rest of its answer waits."""
    monkeypatch.setattr(response_writer, "UNACKNOWLEDGED_SECONDS", 1.0)
    monkeypatch.setattr(response_writer, "STALLED_SECONDS", 4.0)
    gateway.manager.reply, gateway.manager.with_hints = medium, False
    client = await ask(gateway, body())
    client.writer.transport.pause_reading()
    await until(lambda: bool(gateway.session.calls and gateway.session.calls[0].was_delivered))
    await asyncio.sleep(2.5)
    client.writer.transport.resume_reading()

    assert b"x" * 1_000_000 in await client.until(b"}]")
    client.leave()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_read_is_cut_off(gateway: Any, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is not delivered: it may come back for it."""
    monkeypatch.setattr(response_writer, "STALLED_SECONDS", 0.4)
    call, client = await ask_and_read_no_further(gateway, stream=stream)
    await until(lambda: not call.clients)

    assert not call.was_delivered
    assert gateway.session.call_to_join(call.body_digest, 0) is call
    client.leave()


async def test_a_client_that_reads_slowly_is_served(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, as long as it takes something."""
    monkeypatch.setattr(response_writer, "STALLED_SECONDS", 0.8)
    call, client = await ask_and_read_no_further(gateway, stream=True)
    client.writer.transport.resume_reading()
    took_bytes = 0
    async with asyncio.timeout(20.0):
        while took_bytes < BIG:
            took_bytes += len(await client.reader.readexactly(2 << 20)) if took_bytes < BIG - (2 << 20) else BIG
            await asyncio.sleep(0.1)
    await until(lambda: not call.clients)

    assert call.was_delivered
    client.leave()


async def test_with_its_episode_a_client_that_does_not_read_is_cut_off(gateway: Any) -> None:
    """Its agent has ended, or is told so by its next request."""
    call, client = await ask_and_read_no_further(gateway, stream=True)

    assert gateway.sessions.close(gateway.session) == (call.id,)

    await until(lambda: not call.clients)
    client.leave()
