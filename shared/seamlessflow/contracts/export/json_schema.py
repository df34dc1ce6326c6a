"""JSON Schema (2020-12) of every event, as JSON carries it: packed arrays are base64 text, bytes are text.

A reader ignores fields it does not know, so nothing here forbids additional ones.
"""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from seamlessflow.contracts import arrays  # noqa: F401  # their schemas are part of the events'
from seamlessflow.contracts.base import Event, Record

from .field_docs import meaning

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _WithMeanings(GenerateJsonSchema):
    """Pydantic's generator; fields get their meaning and lose their titles, which only repeat the name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        made = super().model_schema(schema)
        kind = schema["cls"]
        if issubclass(kind, Record):
            for field, described in made.get("properties", {}).items():
                described["description"] = meaning(kind, field)
        return made


def event_tag(event: type[Event]) -> str:
    """Name and version as the ``event`` field carries them."""
    return f"{event.__name__}/{event.version}"


def summary(kind: type) -> str:
    """First line of a docstring."""
    return (inspect.getdoc(kind) or "").splitlines()[0]


def body_schema(kind: type[BaseModel], *, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
    """Schema of a record's fields."""
    return kind.model_json_schema(schema_generator=_WithMeanings, ref_template=ref_template)


def event_schema(event: type[Event], *, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
    """Schema of a payload: the fields, and ``event``, which may be missing where the subject tells."""
    body = body_schema(event, ref_template=ref_template)
    tag = {"const": event_tag(event), "description": "Name and version; may be missing where the subject tells."}
    return {**body, "properties": {"event": tag, **body["properties"]}}


def event_document(event: type[Event]) -> dict[str, Any]:
    """The file ``schemas/<EventName>.json``."""
    identity = f"urn:seamlessflow:event:{event.__name__}:{event.version}"
    return {"$schema": DIALECT, "$id": identity, "x-version": event.version, **event_schema(event)}
