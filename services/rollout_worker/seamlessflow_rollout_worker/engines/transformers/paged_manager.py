"""The edge to transformers' continuous batching: its manager, with our draws and our way out put into it.

Everything that depends on ``transformers.generation.continuous_batching`` is in this file. Needs 5.19 or later.

    manager's thread   schedule ─▶ forward ─▶ OwnDraws ─▶ update requests ─▶ LoopRouter ──▶ asyncio loop

What the manager offers by itself and why we replace it: it is greedy for all requests or for none, draws from one
stream for all of them, and takes logprobs after top-p. ``OwnDraws`` is a logits processor of its own kind, so each
request is drawn by the same code as in ``decode_batch``.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import OutputRouter

from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.thread_bridge import call_in
from seamlessflow_rollout_worker.engines.token_sampler import Draws, draw

PAGE_TOKENS = 32
"""Tokens of one cache page. Small, so that short answers do not hold memory they will never use."""

MAX_BATCH_TOKENS = 1024
"""Tokens of one forward pass: more would delay pauses and interrupts, fewer would waste the matrix units."""


class OwnDraws(ContinuousBatchingLogitsProcessor):
    """Draws each request's token its own way and leaves the manager, which is greedy, only that one to choose.

    The logprob goes into the request's state, where the manager would have put its own: outputs carry it. Right only
    in synchronous batching, where a state holds every token sampled so far when the next batch is prepared.
    """

    supported_kwargs = {"sampling": SamplingParams}
    ignored_kwargs = ()

    def __init__(self, engine_stream: random.Random) -> None:
        self._engine_stream = engine_stream
        self._states: list[Any] = []

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
        """Remembers whose logits come next, in order; there is nothing to hand over in tensors."""
        self._states = [request.state for request in requests_with_new_token]
        return torch.zeros(len(self._states), dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        params = [state.logit_processor_kwargs["sampling"] for state in self._states]
        uniforms = [self._uniform(state, each) for state, each in zip(self._states, params, strict=True)]
        # Rows after these belong to prompts of which a part is still to come; the manager ignores them, too.
        tokens, logprobs = draw(scores[: len(params)], params, uniforms)
        for state, logprob in zip(self._states, logprobs, strict=True):
            state.logprobs.append(logprob)
        return scores.scatter(1, torch.tensor(tokens, dtype=torch.long).unsqueeze(1), math.inf)

    def _uniform(self, state: Any, params: SamplingParams) -> float:
        position = len(state.initial_tokens) + len(state.generated_tokens)
        return Draws(params.seed, self._engine_stream).at(position) if params.temperature else 0.0


class LoopRouter(OutputRouter):
    """All outputs of a pass reach the loop in one call. The router it replaces keeps a handler for every cancelled id."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_outputs: Callable[[list[Any]], None]) -> None:
        super().__init__()
        self._loop = loop
        self._on_outputs = on_outputs

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        call_in(self._loop, self._on_outputs, outputs)


def make_manager(module: Any, draws: OwnDraws, router: LoopRouter, *, num_slots: int, max_context_tokens: int) -> Any:
    """A ``ContinuousBatchingManager`` with room for ``num_slots`` full contexts, not started yet."""
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=num_slots * math.ceil(max_context_tokens / PAGE_TOKENS),
        max_batch_tokens=max(MAX_BATCH_TOKENS, num_slots),
        max_requests_per_batch=num_slots,
        max_blocks_per_request=0,  # a fast path of flash attention only
        safety_margin=0.0,  # every slot has its room
        # A shared page never forgets whose weights computed it, and a running request goes on filling shared pages:
        # after load_weights, new requests would read old caches.
        allow_block_sharing=False,
        use_async_batching=False,  # a pass in flight during a pause would end after it
        use_cuda_graph=False,  # OwnDraws cannot be captured
        auto_switch_to_flash=False,  # would ask a model hub for kernels
    )
    # -1: stop tokens come with each request
    generation = GenerationConfig(do_sample=False, eos_token_id=-1)  # type: ignore[no-untyped-call]
    manager = module.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
    manager.logit_processor = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([draws]))
    manager.logit_processor.tensors_required = 1  # it counts only the processors that it converted itself
    manager.output_router = router
    return manager


def start_manager(manager: Any) -> None:
    """Start its thread and wait until it serves. Raises RuntimeError, caused by what went wrong."""

    def start() -> None:
        with torch.inference_mode():  # the manager's thread takes over its starter's
            manager.start()

    # It takes over being a daemon, too: otherwise a process that fails before stop() would never end.
    starter = threading.Thread(target=start, daemon=True)
    starter.start()
    starter.join()
    pass_barrier(manager)


def pass_barrier(manager: Any) -> None:
    """Return between two passes, or at once while paused: all that was sampled before is on its way to the loop."""
    with manager.pause():
        pass
