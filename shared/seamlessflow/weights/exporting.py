"""A version as a model folder: config, tokenizer and ``model.safetensors`` side by side, for ``from_pretrained``.

nothing ─▶ .NAME.<id>.part beside it: fetched, every byte checked ─▶ renamed, all at once
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..blobs import Store
from ..errors import ConfigError, Unavailable
from .fetching import fetch_version
from .folders import fetch_folder, model_path


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
    try:
        fetch_folder(store, model_path(run), part)
    except FileNotFoundError as wrong:
        raise Unavailable(f"the config and tokenizer of run {run} are not at {store.path(model_path(run))}") from wrong
    try:
        fetch_version(store, path, weights_version, part)
    except FileNotFoundError as wrong:
        raise Unavailable(f"version {weights_version} is not in the store any more: it was removed meanwhile") from wrong
