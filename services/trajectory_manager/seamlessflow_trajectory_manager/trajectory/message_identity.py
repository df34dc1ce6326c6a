"""Which message is which, however a client writes it down.

Agents do not echo history byte for byte: tool arguments are re-serialised, empty content becomes null or is left out,
reasoning is dropped. The identity of a message keeps what the model reads and forgets the rest. What changes with each
request and tells the model nothing (``text.noise``) is taken out of a message before anything else is done with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgpack

from seamlessflow.tokenization.volatile_lines import without_noisy_lines

Message = Mapping[str, Any]

KEY_BYTES = 16
"""Of identities and keys: 128 bits, so that two different ones never meet."""

_INSTRUCTIONS = ("system", "developer")
_POINTER = "call_"


def text_of(content: object) -> str:
    """The text of a message's content: a string, null, or a list of text parts. Other parts give their JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part, sort_keys=True, ensure_ascii=False)


def identity_of(message: Message) -> bytes:
    """KEY_BYTES that two messages share exactly when they mean the same to the model.

    Left out: ids of tool calls (they are pointers, see ``pointers_in``), reasoning, and fields the model never sees.
    """
    kept = [
        message.get("role"),
        text_of(message.get("content")),
        [_call_identity(call) for call in message.get("tool_calls") or ()],
        message.get("tool_call_id") if message.get("role") == "tool" else None,
        message.get("name"),
    ]
    return hashlib.sha256(msgpack.packb(kept, unicode_errors="surrogatepass")).digest()[:KEY_BYTES]


def without_noise(message: Message) -> Message | None:
    """The message itself where it holds no noise, else one without it. None: it is nothing but noise."""
    if message.get("role") not in _INSTRUCTIONS:
        return message
    content = message.get("content")
    if isinstance(content, str):
        kept: object = without_noisy_lines(content)
    elif isinstance(content, list):
        kept = list(_without_noisy_parts(content))
    else:
        return message
    if kept == content:
        return message
    return {**message, "content": kept} if kept else None


def _without_noisy_parts(content: Iterable[object]) -> Iterator[object]:
    """Without noisy lines, and without parts in which there was nothing else."""
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        kept = without_noisy_lines(text) if isinstance(text, str) else text
        if kept == text:
            yield part
        elif kept:
            yield {**part, "text": kept} if isinstance(part, dict) else kept


def _call_identity(call: Mapping[str, Any]) -> list[object]:
    function = call.get("function") or {}
    return [function.get("name"), canonical_arguments(function.get("arguments"))]


def canonical_arguments(arguments: object) -> str:
    """Tool arguments without the freedom JSON leaves; text that is not JSON, or nested too deep to read, stays as it is."""
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(given, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return f"raw:{arguments}"


def chain(key: bytes, link: bytes) -> bytes:
    """The key of a conversation that goes on with one more message."""
    return hashlib.sha256(key + link).digest()[:KEY_BYTES]


def tool_call_id(call: str, index: int) -> str:
    """The id of a turn's ``index``-th tool call. Clients bring it back byte for byte, so it points at the turn."""
    return f"{_POINTER}{call}_{index}"


def pointers_in(message: Message) -> Iterator[str]:
    """Calls that a message points at: by its ``turn``, which the gateway reads out of item ids and signatures, or by its
    tool-call ids.

    Ids that are not ours are passed over.
    """
    turn = message.get("turn")
    if isinstance(turn, str):
        yield turn
    for tool_call in message.get("tool_calls") or ():
        identity = tool_call.get("id")
        if isinstance(identity, str) and identity.startswith(_POINTER):
            call, _, index = identity[len(_POINTER) :].rpartition("_")
            if call and index.isdigit():
                yield call
