"""Whether a model folder can be run with, as far as its small files tell: said before anything starts.

What only the weights tell (such as attention that packing cannot express) is checked by the trainer when it loads them.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seamlessflow.errors import BadInput


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
