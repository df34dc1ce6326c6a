"""What a model's folder says of it, for those who load no framework for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seamlessflow.errors import BadInput


def model_config(model_dir: Path) -> dict[str, Any]:
    """A model's config.json. Raises BadInput where there is none."""
    try:
        document = json.loads((model_dir / "config.json").read_text())
    except (OSError, ValueError) as wrong:
        raise BadInput(f"{model_dir} is not a model folder: its config.json cannot be read: {wrong}") from wrong
    if not isinstance(document, dict):
        raise BadInput(f"{model_dir} is not a model folder: its config.json holds no object.")
    return document


def text_config(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about the language model, where a config has several."""
    inner = document.get("text_config")
    return inner if isinstance(inner, dict) else document
