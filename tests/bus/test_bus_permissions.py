"""What a worker is permitted to do suffices for everything a worker does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import nkeys
import pytest

from seamlessflow.bus.base import ConsumerSpec, Message, StreamSpec
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.errors import Unavailable

AUTHORIZATION = """
authorization {
  users = [
    { user: admin, password: pw }
    { user: worker, password: pw, permissions: {
        publish: ["sf.>", "$KV.>", "$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.MSG.NEXT.>", "$JS.ACK.>"]
        subscribe: ["_INBOX_worker.>"]
    } }
  ]
}
"""


@pytest.fixture
def guarded_server(nats_server: EmbeddedServer, tmp_path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path / "guarded", extra_config=AUTHORIZATION).start()
    yield server
    server.kill()


def url_of(server: EmbeddedServer, user: str) -> str:
    return f"nats://{user}:pw@127.0.0.1:{server.port}"


async def test_a_worker_needs_no_right_to_create_anything(guarded_server, inbox, eventually):
    """It publishes, appends, consumes, reads, follows and renews leases; creating is denied to it."""
    admin = await connect(url_of(guarded_server, "admin"), name="admin")
    await admin.ensure_stream(StreamSpec("J_r", subjects=("sf.r.>",)))
    await admin.ensure_stream(StreamSpec("Q_r", source="J_r", source_filters=("sf.r.gen.>",)))
    await admin.ensure_consumer(ConsumerSpec("Q_r", "c", ("sf.r.gen.>",), prioritized=True))
    await admin.kv("LEASES")
    worker = await connect(url_of(guarded_server, "worker"), name="worker", inbox_prefix="_INBOX_worker", patience_seconds=0.5)

    subscription = await worker.consume("Q_r", "c", inbox, credit=2, priority=0)
    await worker.publish(Message("sf.r.gen.a", b"work", "m1", expected_last_seq=0))
    await worker.publish(Message("sf.r.gen.a", b"work", "m1", expected_last_seq=0))
    await eventually(lambda: inbox.payloads == [b"work"])
    assert [record.seq async for record in worker.read("J_r", filters=("sf.r.gen.>", "sf.r.ev.>"))] == [1]
    last = await worker.last("J_r", "sf.r.>")
    assert last is not None and last.message_id == "m1"
    leases = await worker.kv("LEASES")
    revision = await leases.create("n", b"1", ttl_seconds=5)
    await leases.update("n", b"2", revision, ttl_seconds=5)
    assert [entry.value for entry in await leases.entries()] == [b"2"]
    with pytest.raises(Unavailable, match="may we ask this"):
        async with asyncio.timeout(8):
            await worker.ensure_consumer(ConsumerSpec("Q_r", "spy", ("sf.r.ev.>",)))

    await subscription.leave()
    await worker.close()
    await admin.close()


async def test_a_service_proves_who_it_is_by_its_seed(nats_server, tmp_path):
    """The server holds the public half only."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    server = EmbeddedServer(tmp_path / "nkeys", extra_config=f"authorization {{ users = [ {{ nkey: {public} }} ] }}\n").start()

    bus = await connect(server.url, name="known", nkey_seed=seed.decode())
    await bus.ensure_stream(StreamSpec("J_r", subjects=("sf.r.>",)))

    assert (await bus.publish(Message("sf.r.a", b"", "m1"))).seq == 1
    await bus.close()
    server.kill()
