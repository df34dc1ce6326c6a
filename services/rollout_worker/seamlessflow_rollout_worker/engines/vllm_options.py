"""What vLLM is started with: our own settings, and what a run's ``[model.engine_options]`` adds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.model_config import text_config

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
