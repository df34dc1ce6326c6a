"""What a version says about itself, in the file that makes it exist.

    {"weights_version", "step", "dtype",
     "base": the version its delta starts from, or null,
     "base_path": that one's folder below the store; not there: beside this one, its number alone (earlier releases)
     "tensors": {NAME: digest of the tensor's bytes},
     "files": {"model.safetensors": {"blake3", "bytes"},    a full version has it
               "delta.safetensors": {"blake3", "bytes"}},   a version with a base has it
     "adapter": {...}}                                      only of a LoRA run, whose versions are adapters (adapters.py)

A full version with a base has both: who follows takes the small file, who comes late the large one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from seamlessflow.errors import Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import MANIFEST, WEIGHTS_FILE, numbered_path

from .adapters import ADAPTER_FILE, AdapterFacts, parse_facts
from .digests import split_digest
from .stored_file import StoredFile, plain_name, stored_file

DELTA_FILE = "delta.safetensors"


@dataclass(frozen=True, slots=True)
class VersionManifest:
    """A complete version in the store."""

    weights_version: int
    files: Mapping[str, StoredFile]
    base: int | None = None
    """None: there is no delta."""
    tensors: Mapping[str, str] | None = None
    """Digest of each tensor, with its algorithm's name. None: its writer gave none, and it can only be had in full."""
    base_path: str | None = None
    """None: its writer made the base's folder of its number alone."""
    adapter: AdapterFacts | None = None
    """None: its files are of all weights."""
    step: int | None = None
    """Optimiser steps done; for people. None: its writer did not say."""

    @property
    def full(self) -> StoredFile | None:
        """The file that needs no other version: all tensors, or the whole adapter; None: there are only changes."""
        return self.files.get(WEIGHTS_FILE if self.adapter is None else ADAPTER_FILE)

    def base_at(self, path: str) -> tuple[str, int] | None:
        """Folder and number of the version it builds on; None: it builds on none. path: its own folder."""
        if self.base is None:
            return None
        return self.base_path or numbered_path(path.rsplit("/", 1)[0], self.base), self.base

    @property
    def delta(self) -> StoredFile | None:
        """The file with the changes since ``base``; None where they could not be checked."""
        return None if self.base is None or self.tensors is None else self.files.get(DELTA_FILE)


def version_facts(
    *,
    weights_version: int,
    step: int,
    dtype: str,
    base: int | None,
    tensors: Mapping[str, str] | None,
    base_path: str | None = None,
    adapter: AdapterFacts | None = None,
) -> dict[str, object]:
    """The manifest of a version but for its files, for ``publish_folder``."""
    facts: dict[str, object] = {"weights_version": weights_version, "step": step, "dtype": dtype, "base": base}
    if adapter is not None:
        facts["adapter"] = adapter.document
    if base_path is not None:
        facts["base_path"] = base_path
    return facts if tensors is None else {**facts, "tensors": dict(tensors)}


def read_manifest(store: Store, path: str, weights_version: int) -> VersionManifest:
    """The manifest in a version's folder. Raises FileNotFoundError where there is none; Unavailable for one that makes no
    sense, or that is another version's."""
    content = store.read(f"{path}/{MANIFEST}")
    try:
        return _parse(content, weights_version)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise Unavailable(f"{path}/{MANIFEST} is not the manifest of a version: {wrong!r}; nothing was loaded") from wrong


def _parse(content: bytes, weights_version: int) -> VersionManifest:
    document = json.loads(content)
    named, base, tensors = document.get("weights_version", weights_version), document.get("base"), document.get("tensors")
    if named != weights_version:
        raise ValueError(f"it names version {named}, and lies in the folder of {weights_version}")
    if base is not None and not (isinstance(base, int) and 0 <= base < weights_version):
        raise ValueError(f"its base is {base}; a base is an earlier version")
    if not isinstance(base_path := document.get("base_path"), str | None):
        raise ValueError(f"the folder of its base is {base_path}")
    files = {plain_name(name): stored_file(file) for name, file in document["files"].items()}
    digests = None if tensors is None else {str(name): ":".join(split_digest(each)) for name, each in tensors.items()}
    adapter = document.get("adapter")
    step = document.get("step")
    facts = None if adapter is None else parse_facts(adapter)
    return VersionManifest(weights_version, files, base, digests, base_path, facts, step if isinstance(step, int) else None)
