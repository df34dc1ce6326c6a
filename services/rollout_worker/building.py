"""Making the engine a run asks for. Only what is built is imported: torch for a real model, nothing for scripted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamlessflow.errors import BadInput
from seamlessflow.run_config import RunConfig

from .config import WorkerSettings
from .engines.base import Engine

if TYPE_CHECKING:
    from .engines.continuous import ContinuousBatchingEngine
    from .engines.transformers_engine import TransformersEngine

LARGEST_TOY_VOCABULARY = 1024
"""The scripted engine keeps a square table of its vocabulary in plain Python."""

BuildEngine = Callable[[RunConfig, WorkerSettings, Path], Engine]
"""From the run, this worker's settings and the model folder; the engine is not started yet."""


def build_engine(config: RunConfig, settings: WorkerSettings, folder: Path) -> Engine:
    """The engine named by ``model.engine``."""
    num_slots, max_context_tokens = config.fleet.slots, config.model.max_context_tokens
    if config.model.engine == "scripted":
        from .engines.scripted import ScriptedEngine

        return ScriptedEngine(
            vocab_size=_toy_vocab_size(folder), seed=config.seed, num_slots=num_slots, max_context_tokens=max_context_tokens
        )
    return _with_model(config.model.engine)(
        dtype=dtype_of(config, folder),
        num_slots=num_slots,
        max_context_tokens=max_context_tokens,
        num_threads=settings.torch_threads,
        seed=config.seed,
    )


def _with_model(name: str) -> type[TransformersEngine | ContinuousBatchingEngine]:
    if name == "continuous_batching":
        from .engines.continuous import ContinuousBatchingEngine

        return ContinuousBatchingEngine
    from .engines.transformers_engine import TransformersEngine

    return TransformersEngine


def dtype_of(config: RunConfig, folder: Path) -> str:
    """Served precision: the run's, or for "auto" the one in the model's config.json (float32 where it names none)."""
    if config.model.dtype != "auto":
        return config.model.dtype
    document = _model_config(folder)
    named = str(document.get("dtype") or document.get("torch_dtype") or "float32")
    return named if named in ("float32", "bfloat16") else "bfloat16"


def _toy_vocab_size(folder: Path) -> int:
    size = int(_model_config(folder).get("vocab_size", 32))
    if size > LARGEST_TOY_VOCABULARY:
        raise BadInput(
            f"model.engine scripted: expected a vocabulary of at most {LARGEST_TOY_VOCABULARY}, the model has {size}; "
            'use a tiny model, or engine = "transformers"'
        )
    return size


def _model_config(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return document
