"""A model folder: config.json, safetensors and a tokenizer, complete or absent.

``build_folder`` writes beside the target and renames, so that a kill leaves rubbish with another name, never a
half-written model with the right one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seamlessflow.errors import BadInput

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


# Whether a model folder can be run with, as far as its small files tell: said before anything starts.
#
# What only the weights tell (such as attention that packing cannot express) is checked by the trainer when it loads them.


def check_model(folder: Path, name: str) -> None:
    """Raise BadInput, saying what to do, for a model without a chat template or of an architecture that is not served."""
    if template_source(folder) is None and not _has_renderer(name):
        raise BadInput(
            f"model {name}: {folder} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
            "agents talk in messages, so use an instruction-tuned model or add a template"
        )
    kind = _read_json(folder / "config.json").get("model_type")
    if not isinstance(kind, str) or kind not in _causal_models():
        raise BadInput(f"model {name}: model_type {kind!r} in {folder}/config.json is no causal language model of transformers")


def template_source(folder: Path) -> str | None:
    """The chat template of a model folder; of several named ones the default. Raises BadInput for files that are no JSON."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    source = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(source, list):
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _has_renderer(name: str) -> bool:
    """Whether the ``renderers`` package renders this hub id, whatever its template."""
    if find_spec("renderers") is None:
        return False
    base: Any = import_module("renderers.base")
    return name in base.MODEL_RENDERER_MAP


def _causal_models() -> set[str]:
    """Values of ``model_type`` that transformers has a causal language model for."""
    auto: Any = import_module("transformers.models.auto.modeling_auto")
    return set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as wrong:
        raise BadInput(f"{path}: not JSON: {wrong}") from wrong
    return document if isinstance(document, dict) else {}
