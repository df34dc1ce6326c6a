"""Encoding by words gives the tokenizer's own ids, whatever the text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, PreTokenizer, Sequence, Split
from tokenizers.trainers import BpeTrainer

from seamlessflow.models.tiny import make_tiny_tokenizer
from seamlessflow.tokenization.tokenizer import IN_ASCII, WordEncoder

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|im|>"]
EXPRESSIONS = dict(zip(("gpt2", "qwen", "llama3"), IN_ASCII, strict=True))
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
CUTS: dict[str, PreTokenizer] = {
    "gpt2": ByteLevel(add_prefix_space=False),
    "smollm2": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "qwen": Sequence([Split(Regex(EXPRESSIONS["qwen"]), "isolated"), BYTES]),
    "llama3": Sequence([Split(Regex(EXPRESSIONS["llama3"]), "isolated"), BYTES]),
}
PIECES = ["'s", "'LL", " 's", "  ", "\n", "\r\n", "\n\n ", " \n", "\t", *SPECIAL, "<|im_", "0", "12345", " 7", "don't"]
STRANGE = ["é", "\x1c", "\x85", "...", "\x0b", "\u2028"]
TEXTS = st.lists(st.text(st.characters(max_codepoint=127), max_size=60) | st.sampled_from(PIECES + STRANGE), max_size=30)


@cache
def trained(cut: str) -> Tokenizer:
    """A small vocabulary of this repository's words."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = CUTS[cut], decoders.ByteLevel()
    if cut == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    corpus = [(Path(__file__).parents[2] / "README.md").read_text()]
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=1500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@cache
def encoder(cut: str) -> WordEncoder:
    return WordEncoder(trained(cut))


def own(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("cut", CUTS)
@given(TEXTS.map("".join))
@example("It's  what\n\n they'LL say: x = f(a[10], 'b')")
def test_ids_are_the_tokenizers_own(cut: str, text: str) -> None:
    """Contractions, digits, white space of all kinds, special tokens and their look-alikes; words are kept."""
    for _ in range(2):
        assert encoder(cut).encode(text) == own(trained(cut), text)


@pytest.mark.parametrize("cut", CUTS)
def test_the_usual_tokenizers_are_known(cut: str) -> None:
    """Else it would be exact for nothing."""
    assert encoder(cut).by_words


def unknown() -> list[Tokenizer]:
    spaces, stripping = Tokenizer(BPE()), trained("gpt2")
    spaces.pre_tokenizer = Metaspace()
    spaces.train_from_iterator(["a b a b"], BpeTrainer(vocab_size=40, show_progress=False))
    stripping = Tokenizer.from_str(stripping.to_str())
    stripping.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return [spaces, stripping, make_tiny_tokenizer().backend_tokenizer]


@pytest.mark.parametrize("number", range(3))
def test_others_are_left_to_the_tokenizer(number: int) -> None:
    """Words across spaces, tokens that swallow what is around them, no words at all."""
    tokenizer = unknown()[number]
    words = WordEncoder(tokenizer)

    assert not words.by_words
    assert words.encode("a b <mask> What is ") == own(tokenizer, "a b <mask> What is ")
