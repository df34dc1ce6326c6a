"""What a remote engine asks of a server's dialect, and what it believes of an answer. Pure.

A dialect writes a request and reads the events of its stream; ``Answer`` judges what was read. Always true: what ``Answer``
lets through is a continuation that was asked for, each token with its id and its logprob. Everything else is the server's
fault, and of the event that it is in, nothing counts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from seamlessflow_rollout_worker.engines.base import SamplingParams

from .http_client import ServerNonsense

IMPOSSIBLE_LOGPROB = -9998.0
"""vLLM writes -9999 where it has none; no sampled token is this unlikely."""
ROUNDING = 1e-3
"""A logprob may be this much above 0: of a token that is certain, in the precision that is served."""


class Ending(StrEnum):
    """Why a stream ends."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Somebody ended it from outside."""
    CUT = "cut"
    """It just ended; no server says this."""


EARLY = {
    Ending.ABORT: "it ended a request that nobody asked it to end",
    Ending.CUT: "its stream ended before the answer did",
}
"""Endings that are none of the answer, in words for where nobody asked for them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one event."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ending: Ending | None = None
    labels: frozenset[str] = frozenset()
    """The weights that sampled them, where the server says so by name."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to one server: continue ``ids``."""

    request_id: str
    """Of this attempt alone."""
    ids: list[int]
    params: SamplingParams
    max_tokens: int
    label: str | None
    """Name of the weights it is meant for, to keep caches of different ones apart. None: they never change."""
    model: str
    """The name the server gives its model."""


Read = Callable[[Mapping[str, Any]], Piece]
"""Reads the events of one stream, in order; on what it does not know it raises what Python raises."""


class Dialect(Protocol):
    """How one kind of server is asked for tokens."""

    @property
    def path(self) -> str: ...

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request, every parameter that bends the distribution said: servers have defaults of their own."""
        ...

    def reader(self) -> Read: ...

    def names_there(self, request_id: str) -> list[str]:
        """What the server may call the request, for aborting it."""
        ...


class Answer:
    """One stream, judged as it comes. vocab_size: ids lie below it."""

    def __init__(self, ask: Ask, read: Read, *, vocab_size: int) -> None:
        self._ask, self._read, self._vocab_size = ask, read, vocab_size
        self._num_left = ask.max_tokens
        self._last: int | None = None
        """The last token that came."""

    def take(self, event: Mapping[str, Any]) -> Piece:
        """The event's tokens. Raises ServerNonsense."""
        try:
            piece = self._read(event)
            self._check(piece)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as wrong:
            raise ServerNonsense(f"an event that cannot be used: {type(wrong).__name__}: {wrong}") from wrong
        self._num_left -= len(piece.token_ids)
        self._last = next(reversed(piece.token_ids), self._last)
        return piece

    def _check(self, piece: Piece) -> None:
        ids, stops = piece.token_ids, self._ask.params.stop_token_ids
        if len(ids) != len(piece.logprobs):
            raise ValueError(f"{len(ids)} token ids and {len(piece.logprobs)} logprobs")
        if len(ids) > self._num_left:
            raise ValueError(f"{len(ids) - self._num_left} tokens more than asked for")
        if not all(type(each) is int and 0 <= each < self._vocab_size for each in ids):
            raise ValueError(f"ids outside 0..{self._vocab_size - 1}")
        if not all(math.isfinite(each) and IMPOSSIBLE_LOGPROB < each <= ROUNDING for each in piece.logprobs):
            raise ValueError("logprobs that are none")
        if any(each in stops for each in ids[:-1]) or (ids and self._last in stops):
            raise ValueError("tokens behind a stop token")
        if piece.ending is Ending.STOP and next(reversed(ids), self._last) not in stops:
            raise ValueError("it stopped at something that was no stop token")
        if piece.ending is Ending.LENGTH and len(ids) != self._num_left:
            raise ValueError(f"it ended for length with {self._num_left - len(ids)} tokens to go")
        if piece.ending is Ending.CUT:
            raise ValueError(f"it ended with {piece.ending.value!r}, which no server says")
        if self._ask.label is not None and not piece.labels <= {self._ask.label}:
            raise ValueError(f"sampled by {sorted(piece.labels)}, expected {self._ask.label}")


def piece_of(
    ids: Sequence[Any] | None, logprobs: Sequence[Any] | None, ending: str | None, labels: frozenset[str] = frozenset()
) -> Piece:
    """From what stands in an event; a missing list is an empty one."""
    return Piece(tuple(ids or ()), tuple(logprobs or ()), None if ending is None else Ending(ending), labels)


def seed_of_attempt(seed: int, position: int) -> int:
    """A seed for servers whose draws count from the beginning of a request: the same for the same beginning, another one for
    each. With the plain seed a continuation would repeat the draws that its beginning was made with.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


# vLLM's dialects: ``/inference/v1/generate`` (tokens in, tokens out) and ``/v1/completions`` with ``return_token_ids``.
#
# Written after vLLM 0.32. Its stop tokens are reported; its seeds are streams of one request. Penalties and cuts that a model's
# ``generation_config.json`` brings are switched off by name.


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


# SGLang's dialect: ``/generate`` with ``input_ids``.
#
# Written after its documentation (SGLang 0.5). Each event repeats the whole answer, unless the server was started with
# ``--incremental-streaming-output`` (it should be: the repeats grow with the square of an answer's length); either is read.
# A seed is honoured by ``--enable-deterministic-inference`` only, and then each draw depends on the seed and the position, as
# ours do: it is handed on as it is.


_SGLANG_PLAIN = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_LARGEST_SEED = (1 << 63) - 1


class SglangDialect:
    """``/generate``."""

    path = "/generate"

    def body(self, ask: Ask) -> dict[str, Any]:
        params = ask.params
        drawing: dict[str, Any] = {
            **_SGLANG_PLAIN,
            "temperature": params.temperature,
            "top_p": params.top_p if params.temperature > 0.0 else 1.0,
            "max_new_tokens": ask.max_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": True,  # the run says what stops
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        if params.seed is not None:
            drawing["sampling_seed"] = params.seed & _LARGEST_SEED
        return {
            "rid": ask.request_id,
            "input_ids": ask.ids,
            "sampling_params": drawing,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": True,
        }

    def reader(self) -> Read:
        return _Reader().read

    def names_there(self, request_id: str) -> list[str]:
        return [request_id]


class _Reader:
    """Of one stream: finds what is new in each event."""

    def __init__(self) -> None:
        self._num_read = 0

    def read(self, event: Mapping[str, Any]) -> Piece:
        told = event["meta_info"]
        pairs = told.get("output_token_logprobs") or ()
        total = int(told.get("output_token_logprobs_length", told.get("completion_tokens", len(pairs))))
        begin = total - len(pairs)  # 0 where everything is repeated
        if not 0 <= begin <= self._num_read or total < self._num_read:
            raise ValueError(f"tokens {begin}..{total} after {self._num_read} were read")
        fresh = pairs[self._num_read - begin :]
        self._num_read = total
        reason = told.get("finish_reason")
        ending = reason["type"] if isinstance(reason, Mapping) else reason
        return piece_of([each[1] for each in fresh], [each[0] for each in fresh], ending)
