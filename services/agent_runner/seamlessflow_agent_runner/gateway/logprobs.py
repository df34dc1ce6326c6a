"""Logprobs in OpenAI's form. Pure."""

from __future__ import annotations

from typing import Any

from seamlessflow.contracts import AnswerTokens


def token_logprobs(tokens: AnswerTokens) -> list[dict[str, Any]]:
    """Of each sampled token. Alternatives are not recorded: ``top_logprobs`` holds the sampled token alone."""
    return [_one(text, logprob) for text, logprob in zip(tokens.texts, tokens.logprobs, strict=True)]


def _one(text: str, logprob: float) -> dict[str, Any]:
    said = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
    return {**said, "top_logprobs": [said]}
