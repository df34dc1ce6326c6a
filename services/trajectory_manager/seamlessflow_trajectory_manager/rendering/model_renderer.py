"""The renderer of a model folder: the library's where it knows the model exactly, else one over the model's own template."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from seamlessflow.tokenization.tokenizer import ChatTokenizer, read_json

from .base import Renderer
from .chat_template import ChatTemplate
from .renderers_library import library_renderer
from .template_renderer import TemplateRenderer


def load_renderer(folder: Path, model_name: str = "", *, now: datetime) -> Renderer:
    """The renderer of a model folder (config, tokenizer, template). Raises ConfigError that says what is missing.

    ``model_name``: the hub id where known; the ``renderers`` package goes by it. ``now``: what a template that shows the
    date takes for the time, always.
    """

    tokenizer = ChatTokenizer.load(folder, model_name)
    exact = library_renderer(tokenizer, now=now)
    if exact is not None:
        return exact
    return TemplateRenderer(tokenizer, ChatTemplate.load(folder, tokenizer.named, now), stop_ids_of(folder, tokenizer))


def stop_ids_of(folder: Path, tokenizer: ChatTokenizer) -> list[int]:
    """End-of-turn ids: the tokenizer's eos and those of generation_config.json."""
    named = read_json(folder / "generation_config.json").get("eos_token_id")
    listed = named if isinstance(named, list) else [named]
    return [i for i in (*listed, tokenizer.eos_token_id) if isinstance(i, int)]
