"""Our draws inside vLLM: the token that ``sampling.pick`` picks, with the logprob it has there.

Dimensions: B rows, V vocabulary. vLLM's own samplers draw from a generator per request, which a request that goes on elsewhere
cannot take along, and none of its logprob modes is "after temperature, before top-p". So this logits processor draws itself and
leaves one token in each row, with its logprob as its logit; vLLM then samples greedily and reports that "logit"
(``logprobs_mode`` processed_logits).

Runs in vLLM's worker processes; loaded there by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.token_sampler import pick, uniform

from .request_slots import HOW

BROKEN_LOGPROB = float("inf")
"""Says that a row had no finite maximum: raising here would kill the process without a word to those who wait."""


@dataclass(frozen=True, slots=True)
class Row:
    """How a row is drawn. output_ids: vLLM's own list, which grows (by placeholders, where it schedules ahead)."""

    params: SamplingParams
    seed: int
    num_prompt_tokens: int
    output_ids: list[int]

    @property
    def uniform(self) -> float:
        """The number that decides the next token."""
        return uniform(self.seed, self.num_prompt_tokens + len(self.output_ids))


def row_of(params: Any, prompt_ids: list[int] | None, output_ids: list[int]) -> Row:
    """``params``: vLLM's."""
    temperature, top_p, seed = params.extra_args[HOW]
    drawn = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=1, stop_token_ids=())
    return Row(drawn, int(seed), len(prompt_ids or ()), output_ids)


class ExactDraws(LogitsProcessor):  # type: ignore[misc]
    """Leaves in each row of logits the one token that was drawn."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, row_of)

    def apply(self, logits: Tensor) -> Tensor:
        """``logits`` [B, V] in batch order, overwritten."""
        rows_B = [self._rows[index] for index in range(len(logits))]
        tokens_B, logprobs_B = pick(logits, [row.params for row in rows_B], [row.uniform for row in rows_B])
        logprobs_B = torch.where(torch.isfinite(logprobs_B), logprobs_B, BROKEN_LOGPROB)
        return logits.fill_(float("-inf")).scatter_(1, tokens_B.unsqueeze(1), logprobs_B.unsqueeze(1).to(logits.dtype))
