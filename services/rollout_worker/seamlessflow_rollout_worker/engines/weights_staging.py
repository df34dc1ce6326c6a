"""The last file of weights that was staged: read and checked ahead, so that a pause covers no reading.

A file is known by what it is on the disk and not by its path alone: a version that is fetched again has the same path.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from seamlessflow.errors import BadInput
from seamlessflow.weights.safetensors_file import Bits, map_tensors

T = TypeVar("T")


class Staging(Generic[T]):
    """``read``: a file into what can be swapped in at once; runs in a thread, raises BadInput for what does not fit."""

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._staged: tuple[object, T] | None = None

    async def stage(self, file: Path) -> T:
        """Read ``file`` and keep it until it is taken or another is staged; the one kept before is let go of first."""
        self._staged = None
        mark = mark_of(file)
        content = await asyncio.to_thread(self._read, file)
        self._staged = (mark, content)
        return content

    async def take(self, file: Path) -> T:
        """What ``stage`` made of ``file``, staged now where it was not; nothing is kept."""
        kept, self._staged = self._staged, None
        if kept is not None and kept[0] == mark_of(file):
            return kept[1]
        content = await self.stage(file)
        self._staged = None
        return content


def mark_of(file: Path) -> tuple[object, ...]:
    """What tells a file from another at the same path. Raises BadInput where there is none."""
    try:
        facts = file.stat()
    except OSError as wrong:
        raise BadInput(f"{file.name} cannot be read: {wrong}. Nothing was copied.") from wrong
    return file, facts.st_ino, facts.st_size, facts.st_mtime_ns


# Whether a file of weights has the tensors that an engine in other processes serves, told from headers alone.


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


# What a model's folder says of it, for those who load no framework for that.


def model_config(model_dir: Path) -> dict[str, Any]:
    """A model's config.json. Raises BadInput where there is none."""
    try:
        document = json.loads((model_dir / "config.json").read_text())
    except (OSError, ValueError) as wrong:
        raise BadInput(f"{model_dir} is not a model folder: its config.json cannot be read: {wrong}") from wrong
    if not isinstance(document, dict):
        raise BadInput(f"{model_dir} is not a model folder: its config.json holds no object.")
    return document


def text_config(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model, where a config has several."""
    inner = document.get("text_config")
    return inner if isinstance(inner, dict) else document
