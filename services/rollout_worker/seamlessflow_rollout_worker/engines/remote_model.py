"""What a remote engine knows of the run's model, from its folder: how large its vocabulary is, and which tensors it has."""

from __future__ import annotations

from pathlib import Path

from seamlessflow.errors import BadInput
from seamlessflow.weights.tensorfile import map_tensors
from seamlessflow_rollout_worker.engines.model_config import model_config, text_config

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""dtype and shape of each tensor, by name."""


def vocab_size_of(model_dir: Path) -> int:
    """Raises BadInput where config.json does not say it."""
    told = text_config(model_config(model_dir)).get("vocab_size")
    if not isinstance(told, int):
        raise BadInput(f"config.json of {model_dir.name} does not say how large the vocabulary is.")
    return told


def layout_of(file: Path) -> Layout:
    """Of a safetensors file, from its header. Blocks. Raises BadInput."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in map_tensors(file).items()}


def refuse_other(expected: Layout, given: Layout, file: Path) -> None:
    """Raises BadInput: a server would load what fits, and say no more than a line in its log about the rest."""
    if wrong := sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name)):
        name = wrong[0]
        raise BadInput(
            f"{file.name}: {len(wrong)} tensors are not the model's; {name}: expected {expected.get(name, 'none')}, "
            f"got {given.get(name, 'none')}. Nothing was loaded."
        )
