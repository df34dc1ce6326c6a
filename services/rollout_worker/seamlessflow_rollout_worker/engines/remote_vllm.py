"""vLLM's dialects: ``/inference/v1/generate`` (tokens in, tokens out) and ``/v1/completions`` with ``return_token_ids``.

Written after vLLM 0.32. Its stop tokens are reported; its seeds are streams of one request. Penalties and cuts that a model's
``generation_config.json`` brings are switched off by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seamlessflow_rollout_worker.engines.remote_protocol import Ask, Piece, Read, piece_of, seed_of_attempt

_VLLM_PLAIN = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def _drawing(ask: Ask) -> dict[str, Any]:
    params = ask.params
    drawing: dict[str, Any] = {
        **_VLLM_PLAIN,
        "temperature": params.temperature,
        "top_p": params.top_p if params.temperature > 0.0 else 1.0,
        "max_tokens": ask.max_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,  # the run says what stops: its stop tokens hold the end of a turn, if that is meant
        "logprobs": 0,  # of the sampled token alone
    }
    if params.seed is not None:
        drawing["seed"] = seed_of_attempt(params.seed, len(ask.ids))
    return drawing


class TokensDialect:
    """``/inference/v1/generate``. The last event says which weights sampled which tokens."""

    path = "/inference/v1/generate"

    def body(self, ask: Ask) -> dict[str, Any]:
        salt = {} if ask.label is None else {"cache_salt": ask.label}
        drawing = {**_drawing(ask), "detokenize": False}
        return {"request_id": ask.request_id, "token_ids": ask.ids, "sampling_params": drawing, "stream": True, **salt}

    def reader(self) -> Read:
        return _read_tokens

    def names_there(self, request_id: str) -> list[str]:
        return [request_id, f"generate-tokens-{request_id}"]


class CompletionsDialect:
    """``/v1/completions``. Servers other than vLLM may speak it as well, if they return token ids."""

    path = "/v1/completions"

    def body(self, ask: Ask) -> dict[str, Any]:
        salt = {} if ask.label is None else {"cache_salt": ask.label}
        return {
            "model": ask.model,
            "prompt": ask.ids,
            "request_id": ask.request_id,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # spares the server the texts of tokens
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "stream": True,
            **_drawing(ask),
            **salt,
        }

    def reader(self) -> Read:
        return _read_completion

    def names_there(self, request_id: str) -> list[str]:
        return [request_id, f"cmpl-{request_id}-0"]


def _read_tokens(event: Mapping[str, Any]) -> Piece:
    if not event["choices"]:
        return Piece((), ())
    choice = event["choices"][0]
    content = (choice.get("logprobs") or {}).get("content") or ()
    ids = choice.get("token_ids") or ()
    if [each["token_id"] for each in content] != list(ids):
        raise ValueError("logprobs of other tokens than those sampled")
    labels = frozenset(span["version"] for span in choice.get("weight_versions") or ())
    return piece_of(ids, [each["logprob"] for each in content], choice.get("finish_reason"), labels)


def _read_completion(event: Mapping[str, Any]) -> Piece:
    if not event["choices"]:
        return Piece((), ())  # the one that tells the usage
    choice = event["choices"][0]
    if choice.get("text") and choice.get("token_ids") is None:
        raise ValueError("a text without token_ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    return piece_of(choice.get("token_ids"), logprobs, choice.get("finish_reason"))
