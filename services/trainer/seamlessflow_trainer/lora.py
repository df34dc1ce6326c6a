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

from seamlessflow.errors import BadInput
from seamlessflow.run_training_sections import ALL_LINEAR, LoraSection
from seamlessflow.weights.adapters import adapter_config, tensor_name

from .batches import TrainingBatch
from .learner import Hyperparameters, Learner, StepFigures
from .lora_layers import MergedLayer

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
