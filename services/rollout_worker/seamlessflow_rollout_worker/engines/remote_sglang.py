"""SGLang's dialect: ``/generate`` with ``input_ids``.

Written after its documentation (SGLang 0.5). Each event repeats the whole answer, unless the server was started with
``--incremental-streaming-output`` (it should be: the repeats grow with the square of an answer's length); either is read.
A seed is honoured by ``--enable-deterministic-inference`` only, and then each draw depends on the seed and the position, as
ours do: it is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seamlessflow_rollout_worker.engines.remote_protocol import Ask, Piece, Read, piece_of

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
