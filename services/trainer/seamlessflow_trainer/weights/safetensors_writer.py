"""Tensors to safetensors bytes piece by piece: one tensor at a time is copied, never the whole file.

The format is 8 bytes of header length, a JSON header, then the tensors' bytes one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from seamlessflow.errors import BadInput
from seamlessflow.weights.safetensors_file import header

_NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
}  # fmt: skip


def safetensors_chunks(tensors: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> Iterator[bytes | memoryview]:
    """The file's bytes. ``dtype``: floating tensors are cast to it on the way. The tensors may live on any device.

    Raises BadInput, before there is a byte, for a tensor that the format has no dtype for.
    """
    # Wider elements first keeps every tensor aligned to its own size.
    items = sorted(((name, t, kept_dtype(t, dtype)) for name, t in tensors.items()), key=lambda i: (-i[2].itemsize, i[0]))
    described = [(name, dtype_name(name, kept), tuple(tensor.shape)) for name, tensor, kept in items]
    return _chunks(header(described, {"format": "pt"}), items)


def _chunks(begin: bytes, items: list[tuple[str, Tensor, torch.dtype]]) -> Iterator[bytes | memoryview]:
    yield begin
    for _, tensor, kept in items:
        flat = tensor.detach().to(device="cpu", dtype=kept).contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """As safetensors names the dtype of a tensor. Raises BadInput, naming both, where it cannot be written."""
    if dtype not in _NAMES:
        raise BadInput(f"tensor {name} is {dtype}, which cannot be written as weights; known are {', '.join(_NAMES.values())}")
    return _NAMES[dtype]


def kept_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """``dtype`` for floating tensors, their own for all others."""
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
