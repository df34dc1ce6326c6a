"""What a message looks like on the wire, and the one size check; shared by both buses."""

from __future__ import annotations

from collections.abc import Mapping

from seamlessflow.bus.base import MAX_PAYLOAD_BYTES, Message
from seamlessflow.errors import MessageTooLarge


def headers_of(message: Message) -> dict[str, str]:
    """The message's own headers, its id, and what it expects to be last."""
    headers = dict(message.headers)
    headers["Nats-Msg-Id"] = message.message_id
    if message.expected_last_seq is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(message.expected_last_seq)
        if message.expected_subject is not None:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = message.expected_subject
    return headers


def check_size(message: Message, headers: Mapping[str, str]) -> None:
    """Raises MessageTooLarge. nats-py checks the payload alone, and then the server's refusal closes us for good."""
    header_bytes = 14 + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())
    total_bytes = header_bytes + len(message.payload)
    if total_bytes > MAX_PAYLOAD_BYTES:
        raise MessageTooLarge(
            f"{message.message_id} on {message.subject}: {total_bytes} bytes with headers, at most {MAX_PAYLOAD_BYTES} "
            "fit; nothing was sent. Put large bodies into the blob store."
        )
