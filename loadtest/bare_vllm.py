"""``AsyncLLM`` as anybody would use it: what a worker around vllm is compared with. The only benchmark file that loads vllm."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from seamlessflow.config.run import RunConfig
from seamlessflow_rollout_worker.engines.factory import dtype_of
from seamlessflow_rollout_worker.engines.vllm.process import ENVIRONMENT, DiesWith, cpu_cache_bytes
from seamlessflow_rollout_worker.engines.weights_staging import model_config

_AS_OURS = ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "HF_HUB_OFFLINE", "VLLM_LOGGING_LEVEL", "VLLM_WORKER_MULTIPROC_METHOD")
"""Of the environment that our engine sets: nothing that sampling is faster or slower for."""


async def start_vllm(config: RunConfig) -> tuple[Callable[[dict[str, Any]], AsyncIterator[int]], Callable[[], Any]]:
    """How to sample, and how to stop. The run's dtype, context, slots and options; on a CPU as much cache as our engine has.

    Each request asks for the logprob of what is sampled, as ours does, and brings no seed: vLLM is slower with one.
    """
    for name in _AS_OURS:
        os.environ.setdefault(name, ENVIRONMENT[name])
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    size = {"num_slots": config.fleet.slots, "max_context_tokens": config.model.max_context_tokens}
    folder = Path(config.model.name)
    dtype = dtype_of(config, folder)
    cache = {"kv_cache_memory_bytes": cpu_cache_bytes(model_config(folder), dtype=dtype, **size), "enforce_eager": True}
    arguments = AsyncEngineArgs(
        model=config.model.name,
        dtype=dtype,
        max_model_len=config.model.max_context_tokens,
        max_num_seqs=config.fleet.slots,
        skip_tokenizer_init=True,
        load_format="safetensors",
        generation_config="vllm",
        enable_prefix_caching=True,
        disable_log_stats=True,
        **(cache if current_platform.is_cpu() else {}),
        **config.model.engine_options,
    )
    whole = arguments.create_engine_config()
    whole.additional_config = DiesWith(os.getpid())  # a benchmark that is killed leaves none of vLLM's processes behind
    engine = AsyncLLM.from_vllm_config(whole, disable_log_stats=True)
    number = 0

    async def sample(request: dict[str, Any]) -> AsyncIterator[int]:
        nonlocal number
        number += 1
        params = SamplingParams(
            temperature=1.0,
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in engine.generate({"prompt_token_ids": request["prompt"]}, params, f"r{number}"):
            if count := len(output.outputs[0].token_ids):
                yield count

    async def stop() -> None:
        engine.shutdown()

    return sample, stop
