"""Helpers for cases that need no server: run them with the product's Python and with the product's root on PYTHONPATH.

    cd <checkout> && PYTHONPATH=.:<cases> .venv/bin/python <cases>/<case>.py

A body goes through the gateway's own parser, and what it asks goes to the renderer that a trajectory-manager would load from
a model folder that is written here by hand: tokenizer (one token for each byte), chat template, configs.
Exit code of a case: 0 = as expected, 1 = fault, 2 = the case itself broke.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "[INST]",
    "[/INST]",
    "</s>",
]
CALC = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"e": {"type": "string"}}},
    },
}

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(SPECIALS), special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([], trainer)
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return made


def folder(
    template: Any = CHATML,
    *,
    eos: str | None = "<|im_end|>",
    generation_eos: Any = "same",
    config_eos: Any = None,
    in_config: bool = False,
) -> Path:
    """A model folder without weights. ``template``: text, or a list of named ones (then it stands in tokenizer_config.json)."""
    where = Path(tempfile.mkdtemp(prefix="model-"))
    words = byte_tokenizer()
    words.save(str(where / "tokenizer.json"))
    tokenizer_config: dict[str, Any] = {} if eos is None else {"eos_token": eos}
    if isinstance(template, list) or in_config:
        tokenizer_config["chat_template"] = template
    elif template is not None:
        (where / "chat_template.jinja").write_text(template, encoding="utf-8")
    (where / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    config = {"model_type": "llama", "vocab_size": words.get_vocab_size()}
    if config_eos is not None:
        config["eos_token_id"] = [words.token_to_id(t) for t in config_eos]
    (where / "config.json").write_text(json.dumps(config))
    if generation_eos == "same" and eos is not None:
        (where / "generation_config.json").write_text(json.dumps({"eos_token_id": words.token_to_id(eos)}))
    return where


def renderer(where: Path) -> Any:
    from seamlessflow_trajectory_manager.rendering.model_renderer import load_renderer

    return load_renderer(where, "", now=datetime(2026, 11, 30, tzinfo=UTC))


def asked(body: dict[str, Any], path: str = "/v1/chat/completions") -> Any:
    from seamlessflow_agent_runner.gateway.error_middleware import DIALECTS
    from seamlessflow_agent_runner.gateway.previous_responses import PreviousResponses

    dialect = next(d for d in DIALECTS if d.path == path)
    return PreviousResponses().completed(dialect.parse(json.dumps(body).encode()))


def prompt(where: Path, body: dict[str, Any], path: str = "/v1/chat/completions") -> str:
    """The text a model would read. Raises what the gateway or the manager refuses with."""
    request, made = asked(body, path), renderer(where)
    return made.visible.written(made.render(list(request.messages), None if request.tools is None else list(request.tools)))


def verdict(is_ok: bool, what: str) -> None:
    print(("OK    " if is_ok else "FAULT ") + what)
    sys.exit(0 if is_ok else 1)
