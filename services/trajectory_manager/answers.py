"""What a call is answered with: a turn as a chat completions message, or an error. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from seamlessflow.contracts import CallAnswered, CallError, CallRequested, GenerationFinish

from .identity import tool_call_id
from .parsing import Parsed


def message_of(parsed: Parsed, call: str) -> dict[str, object]:
    """A turn in the chat completions form; its tool calls carry ids that point back at it."""
    message: dict[str, object] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = list(_tool_calls(parsed, call))
    return message


def _tool_calls(parsed: Parsed, call: str) -> Iterator[dict[str, object]]:
    for index, tool in enumerate(parsed.tool_calls):
        function = {"name": tool.name, "arguments": tool.arguments}
        yield {"id": tool_call_id(call, index), "type": "function", "function": function}


def refusal(request: CallRequested, error: CallError) -> CallAnswered:
    """An answer that is an error."""
    return CallAnswered(run=request.run, episode=request.episode, call=request.call, error=error)


def too_long(most: int, got: int) -> CallError:
    """A prompt of ``got`` tokens where ``most`` fit: the error that makes agents compact."""
    return CallError(
        status=400,
        code="context_length_exceeded",
        message=f"This model's maximum context length is {most} tokens. However, your messages resulted in {got} tokens. "
        "Please reduce the length of the messages.",
    )


def engine_refused(call: str) -> CallError:
    """No engine can do it."""
    message = f"generation {call} cannot be sampled; its dead letter says why"
    return CallError(status=500, code="engine_refused", message=message)


def call_refused(call: str) -> CallError:
    """We cannot handle it."""
    message = f"call {call} cannot be handled; its dead letter or our log says why"
    return CallError(status=500, code="call_refused", message=message)


def finish_reason(parsed: Parsed, finish: GenerationFinish) -> str:
    """Why a turn ended, in the words of the chat completions form."""
    if parsed.tool_calls:
        return "tool_calls"
    return "length" if finish is GenerationFinish.LENGTH else "stop"
