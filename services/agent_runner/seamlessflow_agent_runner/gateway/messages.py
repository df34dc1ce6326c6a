"""Anthropic messages: what a request body means, and which bodies are refused. Pure; blocks are in ``messages_blocks``,
tools in ``messages_tools``, answers in ``messages_answers``.

Accepted and without effect, because the run decides how tokens are drawn: temperature, top_p, top_k, metadata, thinking,
context_management, service_tier, betas, cache_control, and fields we do not know. A tool_choice that demands a call is a
wish (``offers``). Refused with 400: what an agent would miss if it were ignored (see ``_REFUSED``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .bodies import json_object, model_and_stream, stop_texts, whole_number
from .dialect import Asked
from .errors import unsupported
from .messages_blocks import conversation, system_messages
from .messages_tools import OWN_TOOLS, offered_tools
from .offers import CONSTRAINED, one_call_only, tool_choice

_REFUSED = {
    "output_format": CONSTRAINED,
    "mcp_servers": OWN_TOOLS,
    "container": OWN_TOOLS,
    "thread": "conversations are not kept; send all messages",
    "compaction": "ask for a summary in words of your own",
}
BYTES_PER_TOKEN = 4
"""About what English text and code come to with the vocabularies in use."""


def parse_messages(raw: bytes) -> Asked:
    """The request in a body. Raises ApiError 400 that says what to change."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    tools, left_out = offered_tools(body.get("tools"))
    choice, free = tool_choice(body.get("tool_choice"))
    return Asked(
        model=model,
        messages=(*system_messages(body.get("system")), *conversation(body.get("messages"))),
        tools=tools,
        tool_choice=choice,
        max_tokens=whole_number(body, "max_tokens"),
        stop=stop_texts(body.get("stop_sequences"), "stop_sequences"),
        stream=stream,
        one_call_only=_one_call_only(body.get("tool_choice")),
        notes=(*left_out, *free),
        extra={"shows_thinking": _shows_thinking(body.get("thinking"))},
    )


def _shows_thinking(given: Any) -> bool:
    """Clients that did not ask for thoughts do not expect blocks of them."""
    return isinstance(given, dict) and given.get("type") not in (None, "disabled")


def estimated_tokens(asked: Asked) -> int:
    """An estimate, as the gateway has no tokenizer: a quarter of the UTF-8 bytes of all text, rounded up.

    The count that is exact is the ``input_tokens`` of an answer.
    """
    return -(-sum(len(text.encode()) for text in _all_text(asked)) // BYTES_PER_TOKEN)


def _all_text(asked: Asked) -> Iterator[str]:
    for message in asked.messages:
        yield message["content"]
        yield message.get("reasoning_content", "")
        for call in message.get("tool_calls", ()):
            yield call["function"]["name"]
            yield call["function"]["arguments"]
    for tool in asked.tools or ():
        yield json.dumps(tool["function"], ensure_ascii=False)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for field, why in _REFUSED.items():
        if body.get(field) not in (None, [], {}):
            raise unsupported(f"{field} must be left out: {why}", field)
    config = body.get("output_config")
    if isinstance(config, dict) and config.get("format") is not None:
        raise unsupported(f"output_config.format must be left out: {CONSTRAINED}", "output_config.format")


def _one_call_only(choice: Any) -> bool:
    key = "disable_parallel_tool_use"
    return isinstance(choice, dict) and one_call_only(choice.get(key), f"tool_choice.{key}", value=True)
