"""A learner of low-rank adapters, which peft adds to a model whose own weights stay as they are served. Only it knows peft.

    base, rounded as it is served, frozen ──┐
    A (random), B (zero), float32, trained ─┴▶ merged after each step ─▶ what the model computes with (lora_layers)

Its ``weights`` are the adapters, under PEFT's names for a file; so are its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor

from seamlessflow.config.training_sections import ALL_LINEAR, LoraSection
from seamlessflow.errors import BadInput
from seamlessflow.weights.adapters import adapter_config, tensor_name
from seamlessflow_trainer.data.batch import TrainingBatch

from .base import StepFigures
from .learner import Hyperparameters, Learner

# A layer with an adapter, computed with the weights that engines have: base and adapter merged, and rounded as it is served.
#
#     forward    y = x W',  W' = round(W + scale * B A), made once for each step
#     backward   gradients pass through the rounding as if it were not there: of A and B those of W + scale * B A
#
# Rounded weights are what samples: where an adapter moves a weight by less than half the distance to the next bfloat16, no
# engine sees it. A trainer that adds its own unrounded product computes another policy (docs/adr/0018 has figures). No whole
# matrix needs a gradient all the same: those of A and B are products with x, as in plain LoRA.


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
        """As workers do (seamlessflow.weights.adapters): in float64, rounded once."""
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


ADAPTER = "default"
"""What peft calls an adapter of which there is one."""


class AdapterLearner(Learner):
    """A learner whose weights are adapters. ``adapter_config``: what adapter_config.json says of them."""

    def __init__(
        self,
        model: Any,
        settings: Hyperparameters,
        adapter_config: Mapping[str, object],
        layers: Sequence[MergedLayer],
        *,
        served: torch.dtype,
        compute_dtype: torch.dtype,
    ) -> None:
        super().__init__(model, settings, compute_dtype=compute_dtype)
        self.adapter_config, self._layers, self._served = adapter_config, layers, served
        self._merge()

    def train_parts(
        self,
        parts: Iterable[TrainingBatch],
        *,
        learning_rate: float,
        num_nodes: int = 1,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> StepFigures:
        """See ``Learner``."""
        figures = super().train_parts(parts, learning_rate=learning_rate, num_nodes=num_nodes, should_stop=should_stop)
        self._merge()
        return figures

    def restore(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> None:
        """See ``Learner``."""
        super().restore(weights, optimizer_state)
        self._merge()

    def _merge(self) -> None:
        for layer in self._layers:
            layer.merge(self._served)

    def weights(self) -> dict[str, Tensor]:
        """The live float32 adapters under the names of PEFT's own files. Not a copy: read before the next step."""
        return {tensor_name(name): parameter.detach() for name, parameter in self._parameters.items()}

    def base_weights(self) -> dict[str, Tensor]:
        """All others, under the names of the model's own safetensors. They never change."""
        return {name.replace(".base_layer.", "."): tensor for name, tensor in self._stored() if not _is_adapter(name)}


def adapter_learner(
    model: Any,
    section: LoraSection,
    settings: Hyperparameters,
    *,
    name: str,
    seed: int,
    served: torch.dtype,
    compute: torch.dtype,
    device: torch.device,
) -> AdapterLearner:
    """``model``, in float32 in main memory, with adapters, on its device; it must not be used otherwise any more.

    seed: of the adapters' random half. served, compute: what the weights are published, and multiplied, in.
    Raises BadInput for layers that are not there or whose adapters could not be merged.
    """
    config = _add_adapters(model, section, name, seed)
    for parameter in model.parameters():
        if not parameter.requires_grad:  # buffers stay: engines compute positions in float32, too
            parameter.data = parameter.data.to(served).to(compute)
    layers = config.target_modules
    assert isinstance(layers, set), "peft puts names in the place of what stands for them"
    described = adapter_config(rank=section.rank, alpha=section.alpha, target_modules=sorted(layers), base_name=name)
    merged = _merged_layers(model.to(device))
    return AdapterLearner(model, settings, described, merged, served=served, compute_dtype=compute)


def _merged_layers(model: Any) -> list[MergedLayer]:
    """Put in the place of what peft's layers compute."""
    found = []
    layers: list[Any] = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        base, matrices = layer.get_base_layer(), (layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight)
        layer.forward = MergedLayer(base.weight.detach(), base.bias, *matrices, layer.scaling[ADAPTER])
        found.append(layer.forward)
    return found


def _add_adapters(model: Any, section: LoraSection, name: str, seed: int) -> peft.LoraConfig:
    targets = section.target_modules
    config = peft.LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    except ValueError as wrong:  # none of the names is a layer's, or one is of a kind that has no adapters
        raise BadInput(
            f'model {name}: lora.target_modules {targets}: {wrong}. Name linear layers, or set "{ALL_LINEAR}"'
        ) from wrong
    _check_mergeable(model, name)
    return config


def _check_mergeable(model: Any, name: str) -> None:
    """Raises BadInput, naming the layer, unless each adapter belongs to one matrix that no other layer has a part in."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for layer, module in model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        base: Any = module.get_base_layer()
        if type(base) is not torch.nn.Linear:
            kind = type(base).__name__
            raise BadInput(f"model {name}: {layer} is of type {kind}; adapters are for linear layers (lora.target_modules)")
        if owners[id(base.weight)] > 1:
            raise BadInput(
                f"model {name}: {layer} shares its weight with another layer, which an adapter merged into it would change; "
                "leave it out of lora.target_modules"
            )


def _is_adapter(name: str) -> bool:
    return f".{ADAPTER}." in name and ".lora_" in name
