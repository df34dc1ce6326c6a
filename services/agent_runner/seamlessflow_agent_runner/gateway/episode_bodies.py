"""What agents elsewhere send: what they ask for, and how their episode went. Pure."""

from __future__ import annotations

import math
from typing import Any

from seamlessflow.run_sections import REPORTED, AgentSection

from ..asks import Ask
from ..external import Report
from .bodies import json_object, kind_of
from .errors import bad_request

MAX_WAIT_SECONDS = 600.0
_FIELDS = {"run": str, "env": str, "task": str, "prompt": str, "data": dict, "wait_seconds": (int, float)}


def parse_ask(raw: bytes) -> Ask:
    """The body of POST /episodes; an empty one asks for whatever comes. Raises ApiError 400."""
    body = json_object(raw) if raw.strip() else {}
    for name, value in body.items():
        if name not in _FIELDS:
            raise bad_request(f"unknown field {name!r}; known: {', '.join(_FIELDS)}", name)
        if value is not None and (not isinstance(value, _FIELDS[name]) or isinstance(value, bool)):  # type: ignore[arg-type]
            raise bad_request(f"{name} cannot be {kind_of(value)}", name)
    ask = Ask(**{name: value for name, value in body.items() if value is not None})
    if not 0 <= ask.wait_seconds <= MAX_WAIT_SECONDS:
        raise bad_request(f"wait_seconds must be from 0 to {MAX_WAIT_SECONDS:g}", "wait_seconds")
    if ask.prompt is not None and not ask.prompt.strip():
        raise bad_request("prompt must say what is to be done; leave it out to take whichever episode comes", "prompt")
    if ask.data is not None and ask.prompt is None:
        raise bad_request("data belongs to a new task, which needs a prompt", "data")
    return ask


def parse_report(raw: bytes, agent: AgentSection | None) -> Report:
    """The body of a reward. ``agent`` None: the episode is over, and the report only compared. Raises ApiError 400."""
    body = json_object(raw)
    if len(body) != 1 or not body.keys() <= {"reward", "answer", "failed"}:
        raise bad_request('the body must be one of {"reward": number}, {"answer": "text"} and {"failed": "why"}')
    ((name, value),) = body.items()
    if name == "reward":
        return _reward(value, agent)
    if not isinstance(value, str):
        raise bad_request(f"{name} must be text, got {kind_of(value)}", name)
    if name == "failed":
        return Report(failed=value)
    if agent is not None and agent.reward == REPORTED:
        raise bad_request('this environment has reward = "reported": say {"reward": number}', name)
    if agent is not None and len(value.encode()) > agent.output_bytes:
        raise bad_request(f"the answer is longer than {agent.output_bytes} bytes (output_bytes)", name)
    return Report(answer=value)


def _reward(value: Any, agent: AgentSection | None) -> Report:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise bad_request(f"reward must be a finite number, got {kind_of(value)}", "reward")
    if agent is not None and agent.reward != REPORTED:
        raise bad_request(
            f'answers of this environment are judged by {agent.reward}: say {{"answer": "text"}}, '
            'or set reward = "reported" in the run file',
            "reward",
        )
    return Report(reward=float(value))
