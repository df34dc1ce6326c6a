"""A model folder's tokenizer, without transformers: ids to text and back, and the special tokens.

Loading ``tokenizer.json`` directly takes 50 ms where transformers takes 2 s and pulls in torch when it is installed.
The methods have the names that the ``renderers`` library looks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import ConfigError
from .markers import CALL, CALLED, THINK, THOUGHT
from .words import WordEncoder

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_THOUGHTS = frozenset({THINK, THOUGHT})
_SPOKEN = _THOUGHTS | {CALL, CALLED}
"""Special tokens that are text all the same."""


class ChatTokenizer:
    """Special tokens in a text are recognised; nothing is added before or after it."""

    def __init__(self, tokenizer: Tokenizer, *, named: dict[str, str], name_or_path: str = "") -> None:
        """``named``: bos_token, eos_token, ... of tokenizer_config.json, where present."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._words = WordEncoder(tokenizer)
        self.named = named
        self.name_or_path = name_or_path
        self.special = {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
        self.eos_token_id = self._id_of(named.get("eos_token"))
        self.unk_token_id = self._id_of(named.get("unk_token"))

    @classmethod
    def load(cls, folder: Path, name_or_path: str = "") -> ChatTokenizer:
        """Raises ConfigError when the folder has no usable tokenizer.json."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{folder}: no tokenizer.json; save the model with a fast tokenizer")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as wrong:  # tokenizers raises bare Exception
            raise ConfigError(f"{path}: cannot be read as a tokenizer: {wrong}") from wrong
        return cls(tokenizer, named=_named_tokens(read_json(folder / "tokenizer_config.json")), name_or_path=name_or_path)

    def encode(self, text: str, add_special_tokens: bool = False, **ignored: Any) -> list[int]:
        if not add_special_tokens:
            return self._words.encode(text)
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int] | int, skip_special_tokens: bool = False, **ignored: Any) -> str:
        listed = [ids] if isinstance(ids, int) else list(ids)
        return str(self._tokenizer.decode(listed, skip_special_tokens=skip_special_tokens))

    def hidden_ids(self, stop_token_ids: Iterable[int]) -> frozenset[int]:
        """Sampled ids that say nothing: what ends a turn, and all special tokens but the markers of calls and thoughts."""
        return frozenset(i for i, text in self.special.items() if text not in _SPOKEN) | frozenset(stop_token_ids)

    def grammar_ids(self) -> frozenset[int]:
        """Tokens that mark something, calls and roles say, rather than say it; the markers of thoughts are not among them."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        return frozenset(i for i, t in added if (t.special or t.content[:1] in ("<", "[")) and t.content not in _THOUGHTS)

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int | None] | None:
        if isinstance(tokens, str):
            found: int | None = self._tokenizer.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self._id_of(token) for token in tokens]

    def __call__(self, text: str, **ignored: Any) -> dict[str, Any]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return {"input_ids": list(encoding.ids), "offset_mapping": list(encoding.offsets)}

    def token(self, token_id: int) -> str:
        """A special token's text, or any token's as the vocabulary writes it."""
        return self.special.get(token_id) or str(self._tokenizer.id_to_token(token_id))

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when there is no such file. Raises ConfigError when it is not JSON."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as wrong:
        raise ConfigError(f"{path}: not JSON: {wrong}") from wrong
    return document if isinstance(document, dict) else {}


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    values = {name: config.get(name) for name in _NAMED}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
