"""The front of engines that serve a transformers model: how it is chosen, loaded and limited."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import torch
from torch import Tensor

from seamlessflow_rollout_worker.engines.open_requests import EngineFront
from seamlessflow_rollout_worker.engines.weights_staging import Staging

from .causal_model import CausalModel


class ModelFront(EngineFront):
    """``EngineFront`` with a model from a folder.

    dtype: "bfloat16" or "float32". num_slots: sequences decoded side by side. max_context_tokens: capped by the model.
    num_threads: torch's threads, for the whole process; None leaves them as they are.
    seed: of the draws of requests that bring none; None: different in every process.
    """

    _staging: Staging[dict[str, Tensor]]

    def __init__(
        self,
        *,
        dtype: str = "bfloat16",
        num_slots: int = 64,
        max_context_tokens: int = 2048,
        num_threads: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(num_slots=num_slots, max_context_tokens=max_context_tokens)
        self._dtype = dtype
        self._num_threads = num_threads
        self._engine_stream = random.Random(seed)  # noqa: S311 - sampling, not secrets

    async def _load(self, model_dir: Path, **how: str) -> CausalModel:
        """The model, read in a thread; caps the context. ``how``: of ``CausalModel.load``. Raises BadInput as it does."""
        model = await asyncio.to_thread(self._read, model_dir, **how)
        self._staging = Staging(model.read_weights)
        self._max_context_tokens = min(self._max_context_tokens, model.max_positions)
        return model

    def _read(self, model_dir: Path, **how: str) -> CausalModel:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        return CausalModel.load(model_dir, dtype=self._dtype, **how)
