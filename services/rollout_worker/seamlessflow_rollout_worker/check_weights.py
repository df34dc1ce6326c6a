"""Model folders for an engine's self-check: in the precision they are served in, and with other weights that are still a model.

The only module of it that knows torch and safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seamlessflow.errors import BadInput
from seamlessflow.weights import WEIGHTS_FILE

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")


def write_model(folder: Path, target: Path, dtype: str, *, noise: float = 0.0, seed: int = 0) -> Path:
    """``folder`` as one file of weights in ``dtype``, in ``target``, which is returned.

    noise: each matrix is changed by so much of its own size, at random; 0: not at all. Raises BadInput without safetensors.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise BadInput(f"{folder} has no *.safetensors; the check reads nothing else")
    weights: dict[str, Tensor] = {}
    for shard in shards:
        weights |= load_file(shard)
    stream = torch.Generator().manual_seed(seed)
    changed = {name: _changed(tensor, noise, stream).to(_kept(tensor, dtype)) for name, tensor in sorted(weights.items())}
    target.mkdir(parents=True)
    save_file(changed, target / WEIGHTS_FILE, metadata={"format": "pt"})
    for file in folder.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    return target


def _changed(tensor: Tensor, noise: float, stream: torch.Generator) -> Tensor:
    if not noise or tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    values = tensor.float()
    return values + noise * values.std() * torch.randn(values.shape, generator=stream)


def _kept(tensor: Tensor, dtype: str) -> torch.dtype:
    """Integers stay what they are."""
    served: torch.dtype = getattr(torch, dtype)
    return served if tensor.is_floating_point() else tensor.dtype
