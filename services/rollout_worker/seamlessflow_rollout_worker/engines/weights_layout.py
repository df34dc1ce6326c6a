"""Whether a file of weights has the tensors that an engine in other processes serves, told from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seamlessflow.errors import BadInput
from seamlessflow.weights.tensorfile import Bits, map_tensors

_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """shapes: of every tensor, by name. dtype: what floating ones must have, as safetensors names it."""

    shapes: Mapping[str, tuple[int, ...]]
    dtype: str

    @classmethod
    def of_model(cls, model_dir: Path, *, dtype: str) -> Layout:
        """Of a model's folder, served as ``dtype``. Raises BadInput where it has no weights that can be read."""
        files = sorted(model_dir.glob("*.safetensors"))
        if not files:
            raise BadInput(f"{model_dir.name} has no weights (*.safetensors) to serve.")
        return cls({name: each.shape for file in files for name, each in map_tensors(file).items()}, _NAMES[dtype])

    def stage(self, file: Path) -> Path:
        """Check ``file`` and bring it into memory, where every process finds it. Raises BadInput where it does not fit."""
        tensors = map_tensors(file)
        self._check(tensors)
        for each in tensors.values():
            each.words.view(np.uint8)[::PAGE_BYTES].max(initial=0)
        return file

    def _check(self, tensors: Mapping[str, Bits]) -> None:
        unknown, missing = sorted(tensors.keys() - self.shapes.keys()), sorted(self.shapes.keys() - tensors.keys())
        if unknown or missing:
            raise BadInput(f"Weights do not fit: unknown {unknown[:3]}, missing {missing[:3]}. Nothing was copied.")
        for name, tensor in tensors.items():
            if tensor.shape != self.shapes[name]:
                raise BadInput(f"{name}: expected shape {self.shapes[name]}, got {tensor.shape}. Nothing was copied.")
            if tensor.dtype in _NAMES.values() and tensor.dtype != self.dtype:
                raise BadInput(f"{name}: expected {self.dtype}, as it is served, got {tensor.dtype}. Nothing was copied.")
