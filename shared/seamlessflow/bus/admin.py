"""Making and inspecting streams and consumers: the raw JetStream API, asked again until the server answers.

Everything made here is immutable. The same spec again is fine; another spec under the same name raises ConfigError,
since editing the filter of a work-queue consumer strands the messages that came before.
Only the scheduler (and deployment) is permitted to make things; the services that bind do not come here.
"""

from __future__ import annotations

import json
from typing import Any

from seamlessflow.errors import ConfigError, Unavailable

from .backoff import Patience
from .base import ConsumerSpec, StreamSpec
from .connection import NO_RESPONDERS, Wire
from .consumer import PRIORITY_GROUP

MAX_CONSUMERS = 20_000
"""Set explicitly: -1 means a hidden 1,000 in nats-server 2.15."""

MAX_WAITING_PULLS = 4096
"""Open pull requests per consumer; beyond it the server refuses pulls."""

QUEUE_DUPLICATE_WINDOW_SECONDS = 1.0
"""Small: the journal removes duplicates; a queue that remembers ids can stall its source (nats-server#4459)."""

_NANO = 1_000_000_000
_CALL_SECONDS = 3.0
_DIFFERENT = frozenset({10058, 10148})
_STREAM_MISSING = 10059
_STORAGE_NOT_READY = 10049  # the account's last stream was deleted a moment ago


class Admin:
    """``patience_seconds``: how long a server without JetStream is asked before Unavailable."""

    def __init__(self, wire: Wire, patience_seconds: float) -> None:
        self._wire = wire
        self._patience_seconds = patience_seconds

    async def ensure_stream(self, spec: StreamSpec) -> None:
        """Make a journal or queue unless it exists. Raises ConfigError, Unavailable."""
        await self.create_stream(spec.name, queue_config(spec) if spec.source else journal_config(spec))

    async def create_stream(self, name: str, config: dict[str, Any]) -> None:
        """Raises ConfigError when the name is taken by another configuration."""
        _require(await self._call(f"STREAM.CREATE.{name}", config), f"stream {name}")

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Make a durable consumer unless it exists. Raises ConfigError, Unavailable."""
        body = {"stream_name": spec.stream, "action": "create", "config": consumer_config(spec)}
        answer = await self._call(f"CONSUMER.CREATE.{spec.stream}.{spec.name}", body)
        _require(answer, f"consumer {spec.name} of {spec.stream}")

    async def delete_stream(self, name: str) -> None:
        """Delete with all its consumers; idempotent."""
        answer = await self._call(f"STREAM.DELETE.{name}", {})
        if _error_code(answer) not in (None, _STREAM_MISSING):
            _require(answer, f"stream {name}")

    async def stream_names(self) -> list[str]:
        """All streams of the account, read page by page."""
        names: list[str] = []
        while True:
            answer = await self._call("STREAM.NAMES", {"offset": len(names)})
            names += answer.get("streams") or []
            if len(names) >= answer.get("total", 0) or not answer.get("streams"):
                return names

    async def stream_bytes(self, name: str) -> int:
        """Raises Unavailable when there is no such stream."""
        return int(_require(await self._call(f"STREAM.INFO.{name}", {}), f"stream {name}")["state"]["bytes"])

    async def pending(self, stream: str, consumer: str) -> int:
        """Raises Unavailable when there is no such consumer."""
        answer = await self._call(f"CONSUMER.INFO.{stream}.{consumer}", {})
        info = _require(answer, f"consumer {consumer} of {stream}")
        return int(info["num_pending"]) + int(info["num_ack_pending"])

    async def _call(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer, an error included unless it is one that passes."""
        patience, trouble = Patience(), Patience()
        while True:
            reason = "no answer"
            try:
                answer = await self._wire.request(
                    f"$JS.API.{endpoint}", json.dumps(body).encode(), timeout_seconds=_CALL_SECONDS
                )
                if answer.status != NO_RESPONDERS:
                    parsed: dict[str, Any] = json.loads(answer.payload)
                    if not _passes(parsed):
                        return parsed
                    reason = parsed["error"]["description"]
            except TimeoutError:
                pass  # busy, restarting, or not permitted: a violation looks the same from here
            if trouble.seconds > self._patience_seconds:
                raise Unavailable(
                    f"{endpoint}: {reason} for {self._patience_seconds:g} s. Is JetStream on, and may we ask this?"
                )
            await patience.pause()


def journal_config(spec: StreamSpec) -> dict[str, Any]:
    """A log that keeps everything: limits retention, refuses when full, remembers ids for the window."""
    return {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": "limits",
        "discard": "new",
        "max_bytes": spec.max_bytes,
        "duplicate_window": int(spec.duplicate_window_seconds * _NANO),
        **_common(),
    }


def queue_config(spec: StreamSpec) -> dict[str, Any]:
    """A work queue that takes nothing but what it sources."""
    # A source has one filter_subject; transforms without a destination are its list of filters.
    filters = [{"src": each, "dest": ""} for each in spec.source_filters]
    return {
        "name": spec.name,
        "retention": "workqueue",
        "max_bytes": spec.max_bytes,
        "duplicate_window": int(QUEUE_DUPLICATE_WINDOW_SECONDS * _NANO),
        "sources": [{"name": spec.source, "subject_transforms": filters} if filters else {"name": spec.source}],
        **_common(),
    }


def consumer_config(spec: ConsumerSpec) -> dict[str, Any]:
    """A durable pull consumer with explicit acknowledgement, as the JetStream API wants it."""
    group = {"priority_groups": [PRIORITY_GROUP], "priority_policy": "prioritized"} if spec.prioritized else {}
    return {
        "name": spec.name,
        "durable_name": spec.name,
        "filter_subjects": list(spec.filters),
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(spec.ack_wait_seconds * _NANO),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "max_waiting": MAX_WAITING_PULLS,
        **group,
    }


def _common() -> dict[str, Any]:
    return {"storage": "file", "allow_direct": True, "max_consumers": MAX_CONSUMERS, "num_replicas": 1}


def _error_code(answer: dict[str, Any]) -> int | None:
    return int(answer["error"].get("err_code", 0)) if "error" in answer else None


def _passes(answer: dict[str, Any]) -> bool:
    """Whether it is an error that asking again may cure."""
    return "error" in answer and (answer["error"]["code"] >= 500 or _error_code(answer) == _STORAGE_NOT_READY)


def _require(answer: dict[str, Any], whose: str) -> dict[str, Any]:
    """The answer itself when it is no error. Raises ConfigError, or Unavailable for what is not there."""
    code = _error_code(answer)
    if code is None:
        return answer
    reason = answer["error"]["description"]
    if code in _DIFFERENT:
        raise ConfigError(f"{whose} exists with another configuration ({reason}); nothing was changed. Use a new name.")
    if answer["error"]["code"] == 404:
        raise Unavailable(f"{whose}: {reason}")
    raise ConfigError(f"{whose}: {reason}")
