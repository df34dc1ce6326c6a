"""What of a run's versions lies in the store: complete or not, in which files. Reads manifests and no weights."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from seamlessflow.errors import ConfigError, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import MANIFEST, WEIGHTS_FILE, fetch_folder, model_path

from .manifest import VersionManifest
from .retention import Collection


@dataclass(frozen=True, slots=True)
class Listed:
    """A folder of a version: one attempt to write it."""

    weights_version: int
    path: str
    manifest: VersionManifest | None
    """None: it is not complete, or ``fault`` says why its manifest cannot be used."""
    fault: str = ""
    num_bytes: int | None = None
    """In the store. None: not known."""

    @property
    def kind(self) -> str:
        """In a word, for people."""
        if self.manifest is None:
            return "unreadable" if self.fault else "incomplete"
        if self.manifest.adapter is not None:
            return "adapter"
        has_full, has_changes = WEIGHTS_FILE in self.manifest.files, self.manifest.base is not None
        return "full, changes" if has_full and has_changes else "full" if has_full else "changes"


def inventory(collection: Collection) -> list[Listed]:
    """Every folder there is, lowest version first. Raises Unavailable where the store cannot be listed."""
    there = collection.look()
    return [_listed(collection, path, version) for version in there for path in there[version]]


def _listed(collection: Collection, path: str, version: int) -> Listed:
    try:
        manifest = collection.manifest_at(path, version)
    except Unavailable as wrong:
        return Listed(version, path, None, str(wrong), collection.store.bytes_below(path))
    if manifest is None:
        return Listed(version, path, None, "", collection.store.bytes_below(path))
    return Listed(version, path, manifest, "", sum(file.num_bytes for file in manifest.files.values()))


def choose(listed: list[Listed], published: Mapping[int, str], wanted: int | None, *, head: int | None) -> Listed:
    """The folder that is version ``wanted``; None: the newest, which is ``head`` where that is known.

    published: paths by version, as far as the journal was asked. Raises ConfigError, naming what there is.
    """
    complete = [each for each in listed if each.manifest is not None]
    if wanted is None:
        wanted = head if head is not None else max((each.weights_version for each in complete), default=None)
    if wanted is None:
        raise ConfigError("no version is complete in the store yet")
    named = [each for each in listed if each.weights_version == wanted and published.get(wanted, each.path) == each.path]
    if broken := [each for each in named if each.fault]:
        raise ConfigError(f"version {wanted}: {broken[0].fault}")
    found = [each for each in named if each.manifest is not None]
    if len(found) > 1:  # the version after it knows which of the attempts was published
        bases = {each.manifest.base_path for each in complete if each.manifest is not None}
        found = [each for each in found if each.path in bases] or found
    if len(found) > 1:
        paths = ", ".join(each.path for each in found)
        raise ConfigError(
            f"version {wanted} was written {len(found)} times ({paths}); the server knows which one counts: --nats URL"
        )
    if not found:
        there = ", ".join(str(version) for version in sorted({each.weights_version for each in complete}))
        raise ConfigError(
            f"version {wanted} is not in the store (any more, or without its {MANIFEST}); there are: {there or 'none'}"
        )
    return found[0]


# A version as a model folder: config, tokenizer and ``model.safetensors`` side by side, for ``from_pretrained``.
#
# nothing ─▶ .NAME.<id>.part beside it: fetched, every byte checked ─▶ renamed, all at once


def check_target(folder: Path) -> None:
    """Raises ConfigError for one that has something in it: nothing is overwritten."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} is there already, and nothing is overwritten: name a new folder, or remove it first")


@contextmanager
def part_of(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` that takes its place at the end of the block; gone when the block raises."""
    part = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        part.mkdir(parents=True)
        yield part
        try:
            part.rename(folder)
        except OSError as wrong:
            raise ConfigError(f"{folder} was made meanwhile, and nothing is overwritten ({wrong.strerror})") from wrong
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fill(store: Store, run: str, weights_version: int, path: str, part: Path) -> None:
    """Put a version and the model's own files into a folder. Blocks.

    Raises Unavailable where something is missing or damaged, BadInput for values that are no numbers, OSError.
    """
    from .fetch import fetch_version  # numpy: a listing needs none

    try:
        fetch_folder(store, model_path(run), part)
    except FileNotFoundError as wrong:
        raise Unavailable(f"the config and tokenizer of run {run} are not at {store.path(model_path(run))}") from wrong
    try:
        fetch_version(store, path, weights_version, part)
    except FileNotFoundError as wrong:
        raise Unavailable(f"version {weights_version} is not in the store any more: it was removed meanwhile") from wrong
