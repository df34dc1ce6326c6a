"""Adapters: what a version of a LoRA run is instead of all tensors, in PEFT's format. Pure.

    adapter_config.json        rank, alpha and layers
    adapter_model.safetensors  base_model.model.LAYER.lora_A.weight [rank, in], base_model.model.LAYER.lora_B.weight [out, rank]
    manifest.json              "adapter": {"base_path", "base_digest", "config": as in adapter_config.json}

They belong to one base: a full version of its own in the store, at ``base_path``, the digest of whose file is ``base_digest``;
earlier releases wrote it as "base_sha256".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput
from .hashing import split_digest

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"
PREFIX = "base_model.model."
"""What PEFT puts before the name of a layer."""
SMALLER, LARGER = ".lora_A.weight", ".lora_B.weight"
_NOT_DONE = (
    "use_dora", "use_rslora", "use_qalora", "use_bdlora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern",
    "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters", "alora_invocation_tokens",
    "arrow_config", "kasa_config", "monteclora_config",
)  # fmt: skip
"""Settings of PEFT that change what an adapter means, and that merging does not know."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What a version's manifest says of its adapter."""

    base_path: str
    """Folder of the base below the store."""
    base_digest: str
    """Of the base's file, with its algorithm's name."""
    config: Mapping[str, Any]
    """As PEFT reads it from adapter_config.json."""

    @property
    def document(self) -> dict[str, object]:
        """For the manifest."""
        return {"base_path": self.base_path, "base_digest": self.base_digest, "config": dict(self.config)}


def bases_path(run: str) -> str:
    """Folder of the folders of a run's base below the store: one, or more where writers died."""
    return f"{run}/base"


def base_path(run: str, digest: str) -> str:
    """Folder of the base with this digest below the store: two writers cannot write different things there."""
    return f"{bases_path(run)}/{split_digest(digest)[1]}"


def adapter_config(*, rank: int, alpha: int, target_modules: list[str], base_name: str) -> dict[str, object]:
    """What PEFT, and whoever reads its format, needs to load an adapter of ours."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(target_modules),
        "inference_mode": True,
    }


def parse_facts(document: Mapping[str, Any]) -> AdapterFacts:
    """From a manifest. Raises KeyError, ValueError or TypeError for what makes no sense; the digest may name a folder."""
    path, config = document["base_path"], document["config"]
    digest = ":".join(split_digest(document.get("base_digest", document.get("base_sha256"))))
    if not (isinstance(path, str) and isinstance(config, dict)):
        raise ValueError(f"its adapter's base is {path}, its config {config!r}")
    return AdapterFacts(path, digest, config)


def scale_of(facts: AdapterFacts, whose: str) -> float:
    """What B A is multiplied by. Raises BadInput for an adapter that means something else than base + scale * B A."""
    config = facts.config
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if config.get("peft_type") != "LORA" or not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise BadInput(
            f"{whose}: expected an adapter of type LORA with a rank and an alpha, got {config.get('peft_type')}, r {rank}, "
            f"lora_alpha {alpha}; nothing was loaded"
        )
    odd = [name for name in _NOT_DONE if config.get(name)] + (["bias"] if config.get("bias", "none") != "none" else [])
    if odd:
        raise BadInput(f"{whose}: its adapter_config.json sets {', '.join(odd)}, which cannot be merged; nothing was loaded")
    return float(alpha) / rank


def tensor_name(parameter: str) -> str:
    """PEFT's name in a file for a parameter ``LAYER.lora_A.NAME.weight`` of a model that has an adapter called NAME."""
    layer, matrix, _, weight = parameter.rsplit(".", 3)
    return f"{PREFIX}{layer}.{matrix}.{weight}"
