"""From live weights to the files of a version: all tensors, what changed since the version before, or both.

    weights ─▶ numbers only? ─▶ host copy in the served dtype ─▶ delta against the copy of the version before ─▶ files, digests
                                                    └── kept for the next one, once this one is the head

A delta needs the version before in this process and in the store. So a line of training begins with a full version, and
so does whatever comes after a version that was not published to its end. Where changes take nearly as many bytes as the
weights (float32: every value changes), the version is full and has no delta; float32 weights of which this was so a few
times in a row are published in full from then on, without a copy kept for comparing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from seamlessflow.errors import BadInput
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.delta import encode, parse
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import Bits, tensor_digests

from .safetensors_writer import dtype_name, kept_dtype, safetensors_chunks

# Weights that no engine may see are refused before a byte of them is written: with a reason, where workers would only wait.


class FiniteCheck:
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


WORTHWHILE_SHARE = 0.5
"""A delta above this share of the weights' bytes is not written: a reader would do more work to save less than half."""

MOST_MISSES = 3
"""Versions of float32 weights in a row without a delta that was worth it, after which none is looked for any more."""

SAMPLE_VALUES = 4096
"""Of each tensor, to guess from: enough to tell a twentieth from a half, and soon done."""


class VersionContents(Protocol):
    """A version, ready for the store."""

    @property
    def facts(self) -> Mapping[str, object]:
        """For its manifest."""
        ...

    def contents(self) -> dict[str, bytes | Iterable[bytes | memoryview]]:
        """Its files by name; asked again where writing them failed."""
        ...


class VersionBuilder(Protocol):
    """Files of one version after the other."""

    def make(
        self, weights: Mapping[str, Tensor], *, version: int, step: int, newest: int, is_last: bool = False
    ) -> VersionContents:
        """The files of ``version``. newest: the version that is the head now. is_last: it must need no other. Blocks."""
        ...

    def published(self, version: int, path: str) -> None:
        """What was made last is the head now, in this folder."""
        ...


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """What ``publish_folder`` writes, as often as it has to. Reads ``weights``: they must stay as they are until then."""

    facts: Mapping[str, object]
    weights: Mapping[str, Tensor] | None
    """None: no full file."""
    dtype: torch.dtype
    delta: bytes | None

    def contents(self) -> dict[str, bytes | Iterable[bytes | memoryview]]:
        """The files by name, the small one first: who fails at it has not written the other yet. The full one is made while it
        is read."""
        files: dict[str, bytes | Iterable[bytes | memoryview]] = {}
        if self.delta is not None:
            files[DELTA_FILE] = self.delta
        if self.weights is not None:
            files[WEIGHTS_FILE] = safetensors_chunks(self.weights, dtype=self.dtype)
        return files


class DeltaVersionBuilder:
    """Makes one version after the other. With ``full_every`` above 1 it keeps a copy of the last one in host memory, and
    has two only while it looks for what changed: none where the first values tell that there will be no delta."""

    def __init__(self, dtype: torch.dtype, full_every: int) -> None:
        self._dtype, self._full_every, self._finite_check = dtype, full_every, FiniteCheck(dtype)
        self._last: dict[str, Tensor] = {}
        self._last_version: int | None = None
        """The version ``_last`` holds, once it is published; None: nothing to build on."""
        self._last_path: str | None = None
        self._since_full = 0
        self._misses = 0
        """Deltas in a row that were not worth it."""

    def make(
        self, weights: Mapping[str, Tensor], *, version: int, step: int, newest: int, is_last: bool = False
    ) -> VersionFiles:
        """The files of ``version``. newest: the version that is the head now. is_last: make it full. Blocks.

        Raises BadInput for weights that must not be published, see ``FiniteCheck``.
        """
        self._finite_check.check(weights, f"weights version {version}")
        if self._full_every == 1 or self._is_hopeless:
            return VersionFiles(self._facts(version, step, None, None), weights, self._dtype, None)
        base = newest if self._last_version == newest else None
        if base is None or not self._is_promising(weights):
            self._last = {}  # before there is another copy
        copies = host_copies(weights, self._dtype)
        bits = _bits_of_all(copies)
        delta = self._delta(bits) if self._last else None
        if base is not None:
            self._misses = self._misses + 1 if delta is None else 0
        is_full = is_last or delta is None or self._since_full + 1 >= self._full_every
        self._last, self._last_version = copies, None
        self._since_full = 0 if is_full else self._since_full + 1
        facts = self._facts(version, step, base if delta is not None else None, tensor_digests(bits))
        if self._is_hopeless:
            self._last = {}
        return VersionFiles(facts, copies if is_full else None, self._dtype, delta)

    def published(self, version: int, path: str) -> None:
        """What was made last is the head now, in this folder: the next version may build on it."""
        self._last_version, self._last_path = version, path

    @property
    def _is_hopeless(self) -> bool:
        return self._dtype == torch.float32 and self._misses >= MOST_MISSES

    def _is_promising(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether a delta may be worth it, which the first values of each tensor tell before all of them are looked at."""
        sample = _bits_of_all(host_copies(_first_values(weights), self._dtype))
        changes = parse(encode(_bits_of_all(_first_values(self._last)), sample))
        return len(changes.data) <= WORTHWHILE_SHARE * _num_bytes(sample)

    def _delta(self, bits: Mapping[str, Bits]) -> bytes | None:
        """None: not worth it."""
        delta = encode(_bits_of_all(self._last), bits)
        return delta if len(delta) <= WORTHWHILE_SHARE * _num_bytes(bits) else None

    def _facts(self, version: int, step: int, base: int | None, tensors: Mapping[str, str] | None) -> dict[str, object]:
        dtype = str(self._dtype).removeprefix("torch.")
        path = None if base is None else self._last_path
        return version_facts(weights_version=version, step=step, dtype=dtype, base=base, base_path=path, tensors=tensors)


def _first_values(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().reshape(-1)[:SAMPLE_VALUES] for name, tensor in tensors.items()}


def _num_bytes(bits: Mapping[str, Bits]) -> int:
    return sum(each.words.nbytes for each in bits.values())


def host_copies(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors as they are served, in host memory, never the live ones."""
    return {
        name: tensor.detach().to(device="cpu", dtype=kept_dtype(tensor, dtype), copy=True).contiguous()
        for name, tensor in weights.items()
    }


def _bits_of_all(tensors: Mapping[str, Tensor]) -> dict[str, Bits]:
    return {name: bits_of(name, tensor) for name, tensor in tensors.items()}


def bits_of(name: str, tensor: Tensor) -> Bits:
    """The bit patterns of a contiguous tensor in host memory, not a copy. Raises BadInput, see ``dtype_name``."""
    octets = tensor.reshape(-1).view(torch.uint8).numpy()
    return Bits(dtype_name(name, tensor.dtype), tuple(tensor.shape), octets.view(np.dtype(f"u{tensor.element_size()}")))
