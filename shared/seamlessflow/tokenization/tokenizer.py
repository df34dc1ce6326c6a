"""A model folder's tokenizer, without transformers: ids to text and back, and the special tokens.

Loading ``tokenizer.json`` directly takes 50 ms where transformers takes 2 s and pulls in torch when it is installed.
The methods have the names that the ``renderers`` library looks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from seamlessflow.errors import ConfigError

# Encoding a text word by word, each word once: most of what agents say, they say again.
#
# A byte-level BPE tokenizer first cuts a text into words by a regular expression and then encodes each by itself, so a word
# always has the same ids. Here the words of ASCII text are found by the same expression and looked up; only new ones go through
# the tokenizer. Always true: the ids are the tokenizer's own. Text beyond ASCII, and tokenizers whose expression we do not
# know,
# go through the tokenizer as a whole.


MAX_WORDS = 100_000
"""Then all are forgotten: some ten megabytes."""
MAX_WORD_LENGTH = 64
"""Longer ones are seldom said twice."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_ASCII = r"'s|'t|'re|'ve|'m|'ll|'d| ?[a-zA-Z]+| ?[0-9]+| ?[^\sa-zA-Z0-9]+|\s+(?!\S)|\s+"
_CL100K_ASCII = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\na-zA-Z0-9]?[a-zA-Z]+|[0-9]%s| ?[^\sa-zA-Z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
IN_ASCII = {_GPT2: _GPT2_ASCII, **{_CL100K % digits: _CL100K_ASCII % digits for digits in ("", "{1,3}")}}
"""Expressions of GPT-2, Qwen and Llama 3 and of all that took them over, and what they are for ASCII. None looks behind, and
only white space looks ahead: so a word by itself is one word again."""
_SAMPLE = "It's  what\n\n they'LL say: x = f(a[10], 'b')  # 3.14\t\tand so\r\n on... \x0b\x1c\x85 </s>"

Split = Callable[[str], Iterable[str]]


class WordEncoder:
    """A tokenizer's ``encode`` without special tokens added; those in the text are recognised."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, list[int]] = {}
        self._split = _split_of(tokenizer)
        if self._split is not None and self.encode(_SAMPLE) != self._whole(_SAMPLE):
            self._split = None

    @property
    def by_words(self) -> bool:
        """Whether we know how it cuts."""
        return self._split is not None

    def encode(self, text: str) -> list[int]:
        """Its ids."""
        if self._split is None or not text.isascii():
            return self._whole(text)
        words, ids = self._split(text), self._ids
        return list(chain.from_iterable([ids[word] if word in ids else self._learn(word) for word in words]))

    def _whole(self, text: str) -> list[int]:
        # Without offsets, which cost a quarter of the time.
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _learn(self, word: str) -> list[int]:
        ids = self._whole(word)
        if len(word) <= MAX_WORD_LENGTH:
            if len(self._ids) >= MAX_WORDS:
                self._ids.clear()
            self._ids[word] = ids
        return ids


def _split_of(tokenizer: Tokenizer) -> Split | None:
    """How it cuts ASCII text into words, special tokens being words; None: in a way we do not know."""
    document = json.loads(tokenizer.to_str())
    finders = _finders(document)
    added = tokenizer.get_added_tokens_decoder().values()
    if finders is None or any(each.lstrip or each.rstrip or each.single_word or each.normalized for each in added):
        return None
    longest_first = sorted((each.content for each in added), key=len, reverse=True)
    specials = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def split(text: str) -> Iterator[str]:
        for number, part in enumerate(specials.split(text) if specials else [text]):
            if number % 2:
                yield part
                continue
            pieces = [part]
            for find in finders:
                pieces = list(chain.from_iterable(map(find, pieces)))
            yield from pieces

    return split


def _finders(document: dict[str, Any]) -> list[Split] | None:
    """The steps of its pre-tokenizer, each a function from a piece to smaller ones."""
    model, normalizer = document["model"], document.get("normalizer")
    if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    if normalizer is not None and normalizer["type"] not in ("NFC", "NFKC", "NFD", "NFKD"):  # these leave ASCII as it is
        return None
    outer = document.get("pre_tokenizer") or {"type": "none"}
    finders: list[Split] = []
    for step in outer["pretokenizers"] if outer["type"] == "Sequence" else [outer]:
        if step["type"] == "ByteLevel" and not step["add_prefix_space"]:
            finders += [_finder(_GPT2)] if step["use_regex"] else []
        elif step["type"] == "Digits" and step["individual_digits"]:
            finders.append(re.compile("[0-9]|[^0-9]+").findall)
        elif step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            if step["pattern"].get("Regex") not in IN_ASCII:
                return None
            finders.append(_finder(step["pattern"]["Regex"]))
        else:
            return None
    return finders or None


def _finder(expression: str) -> Split:
    return re.compile(IN_ASCII[expression], re.ASCII).findall


# What models write around thoughts and calls. Tokens of these are text, whatever a tokenizer says of them.


THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"


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
