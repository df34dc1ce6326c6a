"""The one model, as GET /v1/models shows it: fields that OpenAI's clients read, and those that Anthropic's do. Pure."""

from __future__ import annotations

from typing import Any

_UNIX_EPOCH = "1970-01-01T00:00:00Z"
"""What Anthropic's API says where a date is not known."""


def listed_models(name: str) -> dict[str, Any]:
    """A list of it alone."""
    return {"object": "list", "data": [shown_model(name)], "has_more": False, "first_id": name, "last_id": name}


def shown_model(name: str) -> dict[str, Any]:
    """By any name: there is one."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "seamlessflow"}
    return {**openai, "type": "model", "display_name": name, "created_at": _UNIX_EPOCH, "lifecycle": "active"}
