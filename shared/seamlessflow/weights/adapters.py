"""Adapters: what a version of a LoRA run is instead of all tensors, in PEFT's format. Pure.

    adapter_config.json        rank, alpha and layers
    adapter_model.safetensors  base_model.model.LAYER.lora_A.weight [rank, in], base_model.model.LAYER.lora_B.weight [out, rank]
    manifest.json              "adapter": {"base_path", "base_digest", "config": as in adapter_config.json}

They belong to one base: a full version of its own in the store, at ``base_path``, the digest of whose file is ``base_digest``;
earlier releases wrote it as "base_sha256".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seamlessflow.errors import BadInput

from .digests import num_cores, split_digest

if TYPE_CHECKING:  # numpy: manifests are read where there is none
    from .delta_codec import Words
    from .safetensors_file import Bits, Numbers

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


# An adapter's tensors, two for each layer, checked against the base that they are for. Pure.


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of a layer."""

    weight: str
    """Name of the base's tensor [out, in] that they are added to."""
    smaller: Bits
    """[rank, in]"""
    larger: Bits
    """[out, rank]"""


def pairs_of(tensors: Mapping[str, Bits], facts: AdapterFacts, base: Mapping[str, Bits], whose: str) -> list[Pair]:
    """An adapter's tensors, by layer, each checked against the base. Raises BadInput, naming the first that does not fit."""
    from .safetensors_file import FLOATS

    rank, layers = facts.config.get("r"), {_layer_of(name, whose) for name in tensors}
    if not layers:
        raise BadInput(f"{whose}: its adapter has no tensors; nothing was loaded")
    pairs = []
    for layer in sorted(layers):
        names = [f"{PREFIX}{layer}{matrix}" for matrix in (SMALLER, LARGER)]
        if missing := [name for name in names if name not in tensors]:
            raise BadInput(f"{whose}: its adapter has no tensor {missing[0]}; nothing was loaded")
        pair = Pair(f"{layer}.weight", *(tensors[name] for name in names))
        weight = base.get(pair.weight)
        if weight is None:
            raise BadInput(f"{whose}: its adapter is for {layer}, which its base has not; nothing was loaded")
        wanted, found = _shapes(weight, rank), (pair.smaller.shape, pair.larger.shape)
        dtypes = {weight.dtype, pair.smaller.dtype, pair.larger.dtype}
        if wanted != found or not dtypes <= set(FLOATS):
            raise BadInput(
                f"{whose}: of rank {rank} the matrices of {layer} must be {wanted}, its adapter has {found}, of "
                f"{', '.join(sorted(dtypes))}; nothing was loaded"
            )
        pairs.append(pair)
    return pairs


def _layer_of(name: str, whose: str) -> str:
    for matrix in (SMALLER, LARGER):
        if name.startswith(PREFIX) and name.endswith(matrix):
            return name[len(PREFIX) : -len(matrix)]
    raise BadInput(f"{whose}: tensor {name} is none of an adapter's, which end in {SMALLER} or {LARGER}; nothing was loaded")


def _shapes(weight: Bits, rank: object) -> tuple[object, object]:
    """Of both matrices. Nothing fits a weight that is no matrix."""
    if len(weight.shape) != 2:
        return (), ()
    return (rank, weight.shape[1]), (weight.shape[0], rank)


# A base and an adapter to the weights that an engine loads: weight + scale * B A, rounded once.
#
# Sums and products are made in float64, where they are exact or nearly so, and rounded to the dtype that the weight has. So
# the result does not depend on the order in which a library adds, nor on what was merged before: it starts from the base.


CHUNK_VALUES = 1 << 15
"""Values merged in one go: what is in between stays in a core's own cache."""
CHUNK_PRODUCTS = 1 << 19
"""Multiplications in one go, at most. From twice as many on OpenBLAS starts threads of its own beside ours, which wait for each
other by spinning: measured on a busy machine, twenty times the processor time."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of a weight, and what is added to it."""

    dtype: str
    target: Words
    """[rows, columns], changed in place."""
    scaled_B: Numbers
    """[rows, rank]"""
    A: Numbers
    """[rank, columns]"""


def merge(pairs: Sequence[Pair], scale: float, tensors: Mapping[str, Bits], whose: str) -> None:
    """Change the base's ``tensors`` in place, on several threads. ``pairs`` fit them (``pairs_of``).

    Raises BadInput, naming the tensor, where a value gets too large for its dtype or is no number; the tensors are neither
    base nor version then, and must not be used.
    """
    with ThreadPoolExecutor(num_cores()) as pool:
        for pair in pairs:  # one at a time: the pool takes all blocks at once, and each has a part of float64 copies
            if not all(pool.map(_merge_block, _blocks(pair, scale, tensors))):
                raise BadInput(
                    f"{whose}: with its adapter tensor {pair.weight} has values that are NaN or infinite; nothing is loaded"
                )


def _blocks(pair: Pair, scale: float, tensors: Mapping[str, Bits]) -> Iterator[_Block]:
    from .safetensors_file import to_numbers

    weight = tensors[pair.weight]
    num_rows, num_columns = weight.shape
    target = weight.words.reshape(num_rows, num_columns)
    a_RI = to_numbers(pair.smaller.words, pair.smaller.dtype).reshape(pair.smaller.shape)
    b_OR = scale * to_numbers(pair.larger.words, pair.larger.dtype).reshape(pair.larger.shape)
    size = max(1, min(CHUNK_VALUES, CHUNK_PRODUCTS // len(a_RI)))
    width = max(1, min(num_columns, size))
    height = max(1, size // width)
    for row in range(0, num_rows, height):
        rows = slice(row, row + height)
        for column in range(0, num_columns, width):
            columns = slice(column, column + width)
            yield _Block(weight.dtype, target[rows, columns], b_OR[rows], a_RI[:, columns])


def _merge_block(block: _Block) -> bool:
    """Whether all values are finite: only then they are changed."""
    import numpy as np

    from .safetensors_file import from_numbers, to_numbers

    with np.errstate(invalid="ignore", over="ignore"):  # looked for right here
        merged = block.scaled_B @ block.A
        merged += to_numbers(block.target, block.dtype)
        farthest = np.maximum(merged.max(initial=0.0), -merged.min(initial=0.0)).reshape(1)  # NaN if any value is
    # Rounding keeps the order: where this one is finite in the weight's dtype, all are.
    if not np.isfinite(farthest).all() or not np.isfinite(to_numbers(from_numbers(farthest, block.dtype), block.dtype)).all():
        return False
    block.target[...] = from_numbers(merged, block.dtype)
    return True
