"""Encoding a text word by word, each word once: most of what agents say, they say again.

A byte-level BPE tokenizer first cuts a text into words by a regular expression and then encodes each by itself, so a word
always has the same ids. Here the words of ASCII text are found by the same expression and looked up; only new ones go through
the tokenizer. Always true: the ids are the tokenizer's own. Text beyond ASCII, and tokenizers whose expression we do not know,
go through the tokenizer as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

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
