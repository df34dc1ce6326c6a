"""Making the engine a run asks for. Only what is built is imported: torch for a real model, nothing for scripted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamlessflow.config.run import RunConfig
from seamlessflow.errors import BadInput, ConfigError
from seamlessflow_rollout_worker.config import WorkerSettings

from .base import Engine
from .weights_staging import model_config

if TYPE_CHECKING:
    from .remote.engine import RemoteEngine
    from .transformers.continuous_engine import ContinuousBatchingEngine
    from .transformers.engine import TransformersEngine

LARGEST_TOY_VOCABULARY = 1024
"""The scripted engine keeps a square table of its vocabulary in plain Python."""

SERVED_DTYPES = ("float32", "bfloat16", "float16")
"""What a version's tensors may be: an engine that served another dtype than the trainer publishes would refuse each."""

BuildEngine = Callable[[RunConfig, WorkerSettings, Path], Engine]
"""From the run, this worker's settings and the model folder; the engine is not started yet."""


def build_engine(config: RunConfig, settings: WorkerSettings, folder: Path) -> Engine:
    """The engine named by ``model.engine``. Raises BadInput for options of an engine that takes none."""
    if config.model.engine_options and config.model.engine not in ("vllm", "remote"):
        raise BadInput(f"model.engine_options: the engine {config.model.engine} takes none; leave them out")
    num_slots, max_context_tokens = config.fleet.slots, config.model.max_context_tokens
    if config.model.engine == "scripted":
        from .scripted_engine import ScriptedEngine

        return ScriptedEngine(
            vocab_size=_toy_vocab_size(folder), seed=config.seed, num_slots=num_slots, max_context_tokens=max_context_tokens
        )
    if config.model.engine == "remote":
        return _remote(config, settings)
    how: dict[str, Any] = {
        "dtype": dtype_of(config, folder),
        "num_slots": num_slots,
        "max_context_tokens": max_context_tokens,
        "num_threads": settings.torch_threads,
        "seed": config.seed,
    }
    if config.model.engine == "vllm":
        from .vllm.engine import VllmEngine

        return VllmEngine(**how, options=config.model.engine_options)
    return _with_model(config.model.engine)(**how)


def _with_model(name: str) -> type[TransformersEngine | ContinuousBatchingEngine]:
    if name == "continuous_batching":
        from .transformers.continuous_engine import ContinuousBatchingEngine

        return ContinuousBatchingEngine
    from .transformers.engine import TransformersEngine

    return TransformersEngine


def _remote(config: RunConfig, settings: WorkerSettings) -> RemoteEngine:
    """Raises ConfigError for options it does not know, and where this worker was told of no servers."""
    from .remote.engine import RemoteEngine
    from .remote.options import RemoteOptions

    options = RemoteOptions.of(config.model.engine_options)
    if options.fixed_model and config.evaluation.after:
        raise ConfigError(
            "model.engine_options.fixed_model: the evaluation after training waits for the last weights, which would never "
            "come; set evaluation.after = false"
        )
    key = settings.engine_api_key
    return RemoteEngine(
        settings.engine_urls,
        options,
        temperature=config.sampling.temperature,
        top_p=config.sampling.top_p,
        api_key=None if key is None else key.get_secret_value(),
        num_slots=config.fleet.slots,
        max_context_tokens=config.model.max_context_tokens,
    )


def dtype_of(config: RunConfig, folder: Path) -> str:
    """Served precision: the run's, or for "auto" the one in the model's config.json (float32 where it names none)."""
    if config.model.dtype != "auto":
        return config.model.dtype
    document = model_config(folder)
    named = str(document.get("dtype") or document.get("torch_dtype") or "float32")
    return named if named in SERVED_DTYPES else "bfloat16"


def _toy_vocab_size(folder: Path) -> int:
    size = int(model_config(folder).get("vocab_size", 32))
    if size > LARGEST_TOY_VOCABULARY:
        raise BadInput(
            f"model.engine scripted: expected a vocabulary of at most {LARGEST_TOY_VOCABULARY}, the model has {size}; "
            'use a tiny model, or engine = "transformers"'
        )
    return size
