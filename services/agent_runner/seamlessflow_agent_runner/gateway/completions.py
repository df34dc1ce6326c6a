"""OpenAI's legacy completions: what a request body means, and which are refused. Pure; answers in ``completions_answers``.

The prompt is text that no chat template is put around. Accepted and without effect: temperature, top_p, seed, penalties,
logit_bias, user, and fields we do not know. Without max_tokens the run's budget holds, not the sixteen tokens of the API of
old. Refused with 400: several prompts or answers, token ids as a prompt, echo and suffix.
"""

from __future__ import annotations

from typing import Any

from .bodies import json_object, kind_of, model_and_stream, shown, stop_texts, whole_number
from .chat import include_usage
from .dialect import Asked
from .errors import bad_request, unsupported

PROMPT_ROLE = "prompt"


def parse_completions(raw: bytes) -> Asked:
    """The request in a body. Raises ApiError 400 that says what to change."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    return Asked(
        model=model,
        messages=({"role": PROMPT_ROLE, "content": _prompt(body.get("prompt"))},),
        max_tokens=whole_number(body, "max_tokens"),
        stop=stop_texts(body.get("stop"), "stop"),
        stream=stream,
        logprobs=_wants_logprobs(body.get("logprobs")),
        extra={"include_usage": include_usage(body.get("stream_options"), is_stream=stream)},
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for key in ("n", "best_of"):
        if body.get(key) not in (None, 1):
            raise unsupported(f"{key} must be 1: several answers per call are not supported yet; make several calls", key)
    if body.get("echo"):
        raise unsupported("echo must be left out: put the prompt before the answer yourself", "echo")
    if body.get("suffix"):
        raise unsupported("suffix must be left out: text is only sampled behind the prompt", "suffix")


def _prompt(given: Any) -> str:
    prompt = given[0] if isinstance(given, list) and len(given) == 1 else given
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        what = "several prompts, or token ids, are not supported yet; make a call for each prompt, and send it as text"
        raise unsupported(f"prompt must be one text: {what}", "prompt")
    raise bad_request(f"prompt must be text, got {kind_of(prompt)}", "prompt")


def _wants_logprobs(given: Any) -> bool:
    """How many alternatives are wanted: none are recorded, so 0 and 5 give the same."""
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise bad_request(f"logprobs must be a whole number of at least 0, got {shown(given)}", "logprobs")
    return given is not None
