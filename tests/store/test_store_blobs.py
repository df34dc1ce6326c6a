"""The object store: whole objects, large payloads by reference, clear refusals."""

from __future__ import annotations

import asyncio
import hashlib

import boto3
import pytest

from seamlessflow.bus.base import Message
from seamlessflow.errors import MalformedMessage, Unavailable
from seamlessflow.store.large_payloads import BLOB_HEADER, INLINE_BYTES, Store

LARGE = bytes(range(256)) * (INLINE_BYTES // 256 + 1)


def message(payload: bytes) -> Message:
    return Message("sf.demo.call.0.e.c", payload, "demo.call.e.c", {"Content-Type": "application/json"})


@pytest.mark.parametrize("content", [b"", b"x", bytes(6 << 20)], ids=["empty", "one byte", "6 MiB"])
def test_what_was_written_is_read(store, content):
    """Any size, byte for byte; writing again replaces."""
    store.write("demo/a/b.bin", b"before")
    store.write("demo/a/b.bin", content)

    assert store.read("demo/a/b.bin") == content


def test_what_is_not_there_is_told_from_a_store_that_is_away(store):
    """A missing object is FileNotFoundError; only trouble is Unavailable."""
    assert not store.exists("demo/nothing")
    with pytest.raises(FileNotFoundError):
        store.read("demo/nothing")


def test_what_another_process_wrote_is_seen_at_once(store, store_url):
    """No listing is remembered: asking again asks the store."""
    assert not store.exists("demo/late")
    other = Store(store_url)
    other.fs = type(other.fs)(skip_instance_cache=True)
    other.write("demo/late", b"1")

    assert store.exists("demo/late")
    assert store.read("demo/late") == b"1"


def test_a_listing_is_not_remembered(store, store_url):
    """Filesystems keep what they listed; what another process wrote since is there all the same, and removed with the rest."""
    store.write("demo/folder/a", b"1")
    assert store.folders("demo/folder") == ["a"]
    other = Store(store_url)
    other.fs = type(other.fs)(skip_instance_cache=True)
    other.write("demo/folder/b", b"2")

    assert store.exists("demo/folder/b")
    other.write("demo/folder/c", b"3")
    store.remove_folder("demo/folder")
    assert other.folders("demo/folder") == []


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path):
    """The message names store, path and size; a file stands where the folder should be."""
    (tmp_path / "store").write_text("not a folder")

    with pytest.raises(Unavailable, match=r"cannot write demo/x \(3 bytes\)"):
        Store(f"file://{tmp_path}/store").write("demo/x", b"abc")


def test_a_bucket_that_does_not_exist_is_said_so_and_not_made(s3_url):
    """A typing mistake in a URL must not make a bucket."""
    with pytest.raises(Unavailable, match="cannot write demo/x"):
        Store("s3://no-such-bucket/x").write("demo/x", b"abc")

    assert "no-such-bucket" not in [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]]


def test_a_server_that_is_away_is_unavailable(s3_url, monkeypatch):
    """Nobody listens on the endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    away = Store(s3_url)
    away.fs = type(away.fs)(skip_instance_cache=True)
    away.fs.retries = 1

    with pytest.raises(Unavailable, match="cannot read demo/x"):
        away.read("demo/x")


def test_a_local_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    """A writer that dies in the middle leaves the old content where it was."""
    store = Store(f"file://{tmp_path}")
    store.write("demo/x", b"old content")
    whole = store.fs.pipe_file

    def dies_halfway(path, content):
        whole(path, content[: len(content) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(store.fs, "pipe_file", dies_halfway)

    with pytest.raises(Unavailable, match="no space left"):
        store.write("demo/x", b"new content")
    assert store.read("demo/x") == b"old content"


async def test_a_small_payload_travels_inline(store):
    """64 KiB and less: the message is left as it is."""
    small = message(LARGE[:INLINE_BYTES])

    assert await store.detach(small) is small
    assert await store.attach(small.payload, dict(small.headers)) == small.payload


async def test_a_large_payload_travels_by_reference(store):
    """The message keeps subject, id and headers; its payload rests in the run's folder under its digest."""
    sent = await store.detach(message(LARGE))

    assert sent.payload == b""
    assert (sent.subject, sent.message_id) == (message(LARGE).subject, message(LARGE).message_id)
    assert sent.headers["Content-Type"] == "application/json"
    assert sent.headers[BLOB_HEADER] == f"demo/blobs/{hashlib.sha256(LARGE).hexdigest()}"
    assert await store.attach(sent.payload, dict(sent.headers)) == LARGE


async def test_detaching_the_same_payload_twice_stores_it_once(store):
    """Saying an event again gives the same reference."""
    assert await store.detach(message(LARGE)) == await store.detach(message(LARGE))


async def test_a_stored_payload_that_was_altered_is_refused(store):
    """What is read is what was said, or nothing."""
    sent = await store.detach(message(LARGE))
    store.write(sent.headers[BLOB_HEADER], LARGE[:-1])

    with pytest.raises(MalformedMessage, match="does not have the digest of its name"):
        await store.attach(b"", dict(sent.headers))


async def test_a_reference_to_nothing_is_refused(store):
    """The dead letter will say which payload is missing, and where it was looked for."""
    with pytest.raises(MalformedMessage, match="demo/blobs/feed is not in the store"):
        await store.attach(b"", {BLOB_HEADER: "demo/blobs/feed"})


async def test_many_at_once_neither_hang_nor_mix(store):
    """Calls run in threads over one filesystem object; several writers of one digest do not disturb each other."""

    async def there_and_back(number: int) -> bool:
        payload = LARGE + bytes([number % 8])
        sent = await store.detach(message(payload))
        return await store.attach(sent.payload, dict(sent.headers)) == payload

    async with asyncio.timeout(60):
        assert all(await asyncio.gather(*map(there_and_back, range(40))))
