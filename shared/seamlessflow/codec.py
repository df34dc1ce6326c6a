"""Events to bytes and back: msgpack is written, msgpack or JSON is read.

A payload is one map: the event's fields and ``event``, its name and version (``CallRequested/1``). Token arrays are raw
bytes. JSON is recognised by a ``Content-Type: application/json`` header or by its first byte. Where ``event`` is missing,
as from ``nats pub``, the subject decides, provided only one event uses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgpack
from pydantic import ValidationError

from .bus.base import Message
from .contracts.base import LENIENT, Event, Record
from .contracts.routes import BY_NAME
from .contracts.subjects import address, events_on
from .errors import MalformedMessage

R = TypeVar("R", bound=Record)

CONTENT_TYPE = "Content-Type"


def encode(event: Event) -> bytes:
    """msgpack of an event."""
    fields = event.model_dump(mode="python")
    fields["event"] = f"{type(event).__name__}/{event.version}"
    return msgpack.packb(fields, use_bin_type=True)  # type: ignore[no-any-return]


def to_message(event: Event) -> Message:
    """An event ready to be published."""
    return replace(address(event), payload=encode(event))


def decode(subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Event:
    """The event a message holds. Raises MalformedMessage with what was expected and what came."""
    fields = _unpack(subject, payload, headers or {})
    kind = _event_type(subject, fields.pop("event", None))
    if "run" not in fields:
        fields["run"] = _run_of(subject)
    try:
        return kind.model_validate(fields, context={LENIENT: True})
    except ValidationError as wrong:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or kind.__name__}: {e['msg']}" for e in wrong.errors()[:5])
        raise MalformedMessage(f"{subject}: not a {kind.__name__}: {problems}") from wrong


def _unpack(subject: str, payload: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    is_json = "json" in headers.get(CONTENT_TYPE, "") or payload[:1] in (b"{", b" ", b"\n")
    try:
        fields = json.loads(payload) if is_json else msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except Exception as wrong:  # msgpack and json raise a dozen kinds; each means the same here
        form = "JSON" if is_json else "msgpack"
        raise MalformedMessage(
            f"{subject}: expected {form} of one event, got {len(payload)} bytes that are not: {wrong}"
        ) from wrong
    if not isinstance(fields, dict):
        raise MalformedMessage(f"{subject}: expected a map of fields, got {type(fields).__name__}")
    return fields


def _event_type(subject: str, name: object) -> type[Event]:
    if isinstance(name, str):
        kind, _, version = name.partition("/")
        event = BY_NAME.get(kind)
        if event is None:
            raise MalformedMessage(f"{subject}: unknown event {name!r}; a newer writer's, or a typing mistake")
        if version and version.isdigit() and int(version) > event.version:
            raise MalformedMessage(f"{subject}: {name} is newer than this reader, which knows /{event.version}")
        return event
    candidates = events_on(subject)
    if len(candidates) != 1:
        raise MalformedMessage(f"{subject}: field 'event' is missing and the subject does not tell which event this is")
    return candidates[0]


def _run_of(subject: str) -> str:
    tokens = subject.split(".")
    is_control = len(tokens) > 3 and tokens[1] == "ctl"
    return tokens[3] if is_control else tokens[1] if len(tokens) > 1 else ""


def pack_record(record: Record) -> bytes:
    """msgpack of a key-value document."""
    return msgpack.packb(record.model_dump(mode="python"), use_bin_type=True)  # type: ignore[no-any-return]


def unpack_record(kind: type[R], value: bytes) -> R:
    """A key-value document; unknown fields are ignored. Raises MalformedMessage."""
    try:
        return kind.model_validate(msgpack.unpackb(value, raw=False), context={LENIENT: True})
    except (ValueError, msgpack.UnpackException) as wrong:
        raise MalformedMessage(f"expected a {kind.__name__}: {wrong}") from wrong
