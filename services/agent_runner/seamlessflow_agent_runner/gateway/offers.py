"""Tools: what a request offers the model, and what it demands of it, as far as it is alike in all dialects. Pure.

Nothing but constrained decoding could make a model call a tool, or a certain one. Agents send such demands by default and
cope with a model that does not obey, so a demand is taken as ``auto`` and told as a note instead of ending the agent.
That only one tool is called at a time can be kept without it: of several calls in a turn, the first is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seamlessflow.contracts import CallAnswered

from .bodies import kind_of, shown
from .dialect import Asked
from .errors import bad_request

Message = dict[str, Any]

CONSTRAINED = "it needs constrained decoding, which is not supported yet"
FREE_CHOICE = f"a tool_choice that demands a call is taken as auto: {CONSTRAINED}"
HOSTED = "tools that are not functions which the agent describes are not offered to the model: nobody here could run them"
CHOICES = ("auto", "none")
DEMANDS = ("required", "any")
MAX_TOOLS = 4096
"""More than fit into any prompt, and few enough that nobody else waits while a request with so many is read."""


def listed_tools(given: Any) -> list[Any]:
    """What stands in ``tools``. Raises ApiError 400."""
    if given is not None and not isinstance(given, list):
        raise bad_request(f"tools must be a list, got {kind_of(given)}", "tools")
    if given and len(given) > MAX_TOOLS:
        raise bad_request(f"tools must be at most {MAX_TOOLS}, got {len(given)}", "tools")
    return given or []


def tool_choice(given: Any) -> tuple[str | None, tuple[str, ...]]:
    """``auto``, ``none`` or None, with notes. A word, or an object whose type is a word. Raises ApiError 400."""
    if given is None:
        return None, ()
    kind = given.get("type") if isinstance(given, dict) else given
    if isinstance(kind, str) and kind in CHOICES:
        return kind, ()
    if isinstance(kind, str) and (isinstance(given, dict) or kind in DEMANDS):
        return "auto", (FREE_CHOICE,)
    raise bad_request(
        f"tool_choice must be 'auto', 'none', 'required' or the name of a tool, got {shown(given)}", "tool_choice"
    )


def one_call_only(given: Any, key: str, *, value: bool) -> bool:
    """Whether a switch, if it is there, has the value that forbids parallel calls. Raises ApiError 400."""
    if given not in (None, True, False):
        raise bad_request(f"{key} must be true or false, got {shown(given)}", key)
    return given is value


def calls_of(asked: Asked, answer: CallAnswered) -> Sequence[Message]:
    """The tool calls of an answer that are handed out."""
    calls: Sequence[Message] = answer.message.get("tool_calls") or ()
    return calls[:1] if asked.one_call_only else calls
