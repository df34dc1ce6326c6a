"""Weights that no engine may see are refused before a byte of them is written: with a reason, where workers would only wait."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from seamlessflow.errors import BadInput

from .tensorfiles import kept_dtype


class NumbersOnly:
    """Refuses NaN anywhere, infinities but where they belong, and values that the served dtype has only infinity for.

    A tensor that had infinities in the first weights seen (a model's mask, kept as a buffer) may go on having them: training
    did not make them, and a base model whose parameters have some fails when it is loaded.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._masks: frozenset[str] | None = None
        """Tensors that may have infinities; None: no weights were seen yet."""

    def check(self, weights: Mapping[str, Tensor], whose: str) -> None:
        """Raises BadInput, naming the tensor. Reads each once, where it lives, and copies none."""
        infinite = set()
        for name, tensor in weights.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            ends = torch.stack(torch.aminmax(tensor.detach()))  # NaN if any value is
            served = kept_dtype(tensor, self._dtype)
            if bool(ends.to(served).isfinite().all()):  # rounding keeps the order: all values in between are, too
                continue
            if bool(ends.isfinite().all()):
                raise BadInput(f"{whose}: tensor {name} has values too large for {served}; nothing of it is published")
            if bool(ends.isnan().any()) or (self._masks is not None and name not in self._masks):
                raise BadInput(f"{whose}: tensor {name} has values that are NaN or infinite; nothing of it is published")
            infinite.add(name)
        if self._masks is None:
            self._masks = frozenset(infinite)
