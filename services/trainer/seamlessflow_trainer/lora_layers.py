"""A layer with an adapter, computed with the weights that engines have: base and adapter merged, and rounded as it is served.

    forward    y = x W',  W' = round(W + scale * B A), made once for each step
    backward   gradients pass through the rounding as if it were not there: of A and B those of W + scale * B A

Rounded weights are what samples: where an adapter moves a weight by less than half the distance to the next bfloat16, no
engine sees it. A trainer that adds its own unrounded product computes another policy (docs/adr/0018 has figures). No whole
matrix needs a gradient all the same: those of A and B are products with x, as in plain LoRA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_VALUES = 1 << 17
"""Values merged in one go, in float64: what is in between stays in a core's cache, or is little."""


class MergedLayer:
    """What a linear layer with an adapter computes, on the device of its tensors. ``merge`` first, and after every change."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scale: float) -> None:
        """weight: in the dtype of products, with values that the served dtype has."""
        self._weight_OI, self._bias_O, self._a_RI, self._b_OR, self._scale = weight_OI, bias_O, a_RI, b_OR, scale
        self._merged_OI = torch.empty_like(weight_OI)

    @torch.no_grad()
    def merge(self, served: torch.dtype) -> None:
        """As workers do (seamlessflow.weights.merging): in float64, rounded once."""
        rows = max(1, CHUNK_VALUES // max(1, self._weight_OI.shape[1]))
        a_RI = self._a_RI.double()
        for at in range(0, len(self._weight_OI), rows):
            b_OR = self._b_OR[at : at + rows].double() * self._scale
            merged = torch.addmm(self._weight_OI[at : at + rows].double(), b_OR, a_RI)
            self._merged_OI[at : at + rows] = merged.to(served)

    def __call__(self, x: Tensor) -> Tensor:
        apply: Any = _Product.apply
        product: Tensor = apply(x, self._a_RI, self._b_OR, self._merged_OI, self._bias_O, self._scale)
        return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a_RI: Tensor, b_OR: Tensor, merged_OI: Tensor, bias_O: Tensor | None, scale: float
    ) -> Tensor:
        ctx.scale, ctx.dtype = scale, x.dtype
        x = x.to(merged_OI.dtype)
        ctx.save_for_backward(x, a_RI, b_OR, merged_OI)
        return torch.nn.functional.linear(x, merged_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        x, a_RI, b_OR, merged_OI = ctx.saved_tensors
        grad_TO, x_TI = grad.flatten(0, -2).to(x.dtype), x.flatten(0, -2)
        a_RI, b_OR = a_RI.to(x.dtype), b_OR.to(x.dtype)
        grad_A = ctx.scale * ((grad_TO @ b_OR).T @ x_TI).float()
        grad_B = ctx.scale * (grad_TO.T @ (x_TI @ a_RI.T)).float()
        grad_x = (grad_TO @ merged_OI).view(x.shape).to(ctx.dtype)
        return grad_x, grad_A, grad_B, None, None, None
