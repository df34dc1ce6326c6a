"""An adapter's tensors, two for each layer, checked against the base that they are for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BadInput
from .adapters import LARGER, PREFIX, SMALLER, AdapterFacts
from .floats import FLOATS
from .tensorfile import Bits


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
