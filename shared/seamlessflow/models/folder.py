"""A model folder: config.json, safetensors and a tokenizer, complete or absent.

``build_folder`` writes beside the target and renames, so that a kill leaves rubbish with another name, never a
half-written model with the right one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

REQUIRED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def is_model_folder(folder: Path) -> bool:
    """Whether ``folder`` has a config, a tokenizer and at least one safetensors file."""
    return all((folder / name).is_file() for name in REQUIRED_FILES) and any(folder.glob("*.safetensors"))


def build_folder(target: Path, write: Callable[[Path], None]) -> Path:
    """Let ``write`` fill a fresh folder, then give it the name ``target`` in one step; return ``target``.

    When two processes build the same target, the first rename wins and the second one's work is thrown away.
    An incomplete ``target`` (made by hand, or by an older version) is replaced. Errors of ``write`` rise.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write(fresh)
        if target.exists() and not is_model_folder(target):
            shutil.rmtree(target)
        fresh.chmod(0o755)
        try:
            fresh.replace(target)
        except OSError:
            # Not empty: somebody else finished first. Only their complete folder excuses the failed rename.
            if not is_model_folder(target):
                raise
        return target
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
