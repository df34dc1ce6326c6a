"""What every event is: a frozen fact with a name and a version, strict when built and lenient when read.

Built by us, an unknown field is a mistake and refused. Read from the bus, it is a newer writer's and ignored, so that
services of different ages work side by side.
"""

from __future__ import annotations

import base64
import hashlib
import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

LENIENT = "lenient"
"""Key of the validation context that marks a read from the bus."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,47}\Z")
RESERVED_RUN = "ctl"


def _subject_token(value: str) -> str:
    if not _TOKEN.match(value):
        raise ValueError(f"expected 1 to 128 letters, digits, '-' or '_' (it becomes a subject token), got {value!r}")
    return value


def _run_name(value: str) -> str:
    if not _RUN.match(value) or value == RESERVED_RUN:
        raise ValueError(f"expected up to 48 of a-z, 0-9 and '-', not 'ctl' (it names streams and subjects), got {value!r}")
    return value


Token = Annotated[str, AfterValidator(_subject_token), WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"})]
"""An id that becomes one token of a subject."""
RunName = Annotated[
    str, AfterValidator(_run_name), WithJsonSchema({"type": "string", "pattern": "^(?!ctl$)[a-z0-9][a-z0-9-]{0,47}$"})
]


def _raw_bytes(value: object) -> object:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


RawBytes = Annotated[
    bytes,
    BeforeValidator(_raw_bytes),
    PlainSerializer(lambda raw: base64.b64encode(raw).decode(), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Bytes of any kind: raw in msgpack, base64 in JSON."""


class Service(StrEnum):
    """The five services, and the people and programs outside them."""

    AGENT_RUNNER = "agent-runner"
    ROLLOUT_WORKER = "rollout-worker"
    TRAJECTORY_MANAGER = "trajectory-manager"
    SCHEDULER = "scheduler"
    TRAINER = "trainer"
    USER = "user"


class Record(BaseModel):
    """A frozen part of an event; unknown fields are refused when built and ignored when read."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, dict) and not (info.context or {}).get(LENIENT):
            unknown = sorted(set(given) - set(cls.model_fields))
            if unknown:
                raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}; it has {', '.join(cls.model_fields)}")
        return given


def is_absent(value: object) -> bool:
    """For ``Field(exclude_if=...)`` of an added field: without it the bytes are those that older writers wrote."""
    return value is None or value == () or value == ""


class Event(Record):
    """A fact about one run, in the past tense."""

    version: ClassVar[int] = 1
    """Raised when a field changes its meaning; added fields do not raise it."""

    run: RunName


def partition(identity: str, count: int) -> int:
    """Which of ``count`` shards or buckets an id belongs to; the same in every process.

    A real hash, no checksum: CRCs of ids that differ in a digit or two agree in so many bits that whole shards stay empty.
    """
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=4).digest()) % count
