"""What a call is answered with: a turn as a chat completions message, or an error. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from seamlessflow.contracts import AnswerTokens, CallAnswered, CallError, CallRequested, GenerationFinish, Usage
from seamlessflow_trajectory_manager.rendering.tool_calls import Parsed
from seamlessflow_trajectory_manager.rendering.visible_text import Visible

from .call import Asked
from .message_identity import tool_call_id
from .tree import Turn


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


def answer_of(
    request: CallRequested | Asked,
    turn: Turn,
    parsed: Parsed,
    finish: GenerationFinish,
    visible: Visible,
    *,
    prompt_tokens: int,
) -> CallAnswered:
    """A turn as the answer to its call."""
    return CallAnswered(
        run=request.run,
        episode=request.episode,
        call=request.call,
        message=message_of(parsed, request.call),
        finish_reason=finish_reason(parsed, finish),
        stop_sequence=parsed.stop_sequence,
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=len(turn.sampled)),
        tokens=_tokens_of(turn, visible) if request.logprobs else None,
    )


def _tokens_of(turn: Turn, visible: Visible) -> AnswerTokens:
    """All that were sampled, those of a stop text included."""
    return AnswerTokens(token_ids=turn.sampled, logprobs=turn.logprobs, texts=visible.texts(list(turn.sampled)))


def refusal(request: CallRequested | Asked, error: CallError) -> CallAnswered:
    """An answer that is an error."""
    return CallAnswered(run=request.run, episode=request.episode, call=request.call, error=error)


def too_long(most: int, got: int) -> CallError:
    """A prompt of ``got`` tokens where ``most`` fit: the error that makes agents compact."""
    return CallError(
        status=400,
        code="context_length_exceeded",
        message=f"This model's maximum context length is {most} tokens. However, your messages resulted in {got} tokens. "
        "Please reduce the length of the messages.",
        most_tokens=most,
        got_tokens=got,
    )


def engine_refused(call: str) -> CallError:
    """No engine can do it."""
    message = f"generation {call} cannot be sampled; its dead letter says why"
    return CallError(status=500, code="engine_refused", message=message)


def client_gone(call: str) -> CallError:
    """Nobody waits for it any more; in the words of web servers, which log such requests with 499."""
    message = f"the client of call {call} went away, so sampling ended; what was sampled is kept, and is not trained"
    return CallError(status=499, code="client_gone", message=message)


def empty_prompt() -> CallError:
    """A raw prompt without a token: an engine has nothing to go on from."""
    return CallError(status=400, code="invalid_request_error", message="the prompt is empty; at least one token is needed")


def call_refused(call: str) -> CallError:
    """We cannot handle it."""
    message = f"call {call} cannot be handled; its dead letter or our log says why"
    return CallError(status=500, code="call_refused", message=message)


def instead_of_unreadable(subject: str) -> list[CallAnswered]:
    """What is said instead of the consequences of a message that nobody can read: an error, where its subject is a call's."""
    _, run, kind, *rest = subject.split(".")
    if kind != "call" or len(rest) != 3 or rest[2] == "ended":
        return []
    _, episode, call = rest
    return [CallAnswered(run=run, episode=episode, call=call, error=call_refused(call))]


def finish_reason(parsed: Parsed, finish: GenerationFinish) -> str:
    """Why a turn ended, in the words of the chat completions form. A stop text may come with the last token of the budget."""
    if parsed.tool_calls:
        return "tool_calls"
    if parsed.stop_sequence is not None:
        return "stop"
    return "length" if finish is GenerationFinish.LENGTH else "stop"
