"""Text told token by token: the whole text, each character once, and nothing that a later token changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from seamlessflow.tokenization.detokenizer import BROKEN, Spoken
from seamlessflow.tokenization.tokenizer import ChatTokenizer
from tests.text.words import BYTES, byte_level

WORDS, SINGLE = byte_level(), byte_level(0)
SPECIAL = sorted(WORDS.special)
whole_texts = st.text(alphabet="ab \n1é漢🙂", max_size=12).map(WORDS.encode)
pieces = st.one_of(st.sampled_from("é漢🙂").map(WORDS.encode), st.sampled_from(BYTES).map(lambda i: [i]))
garbage_runs = st.lists(st.sampled_from(SINGLE.encode("é漢🙂")), min_size=20, max_size=60)
sampled = st.lists(st.one_of(whole_texts, pieces, garbage_runs, st.sampled_from(SPECIAL).map(lambda i: [i])), max_size=20).map(
    lambda parts: [i for part in parts for i in part]
)


def told(spoken: Spoken, ids: Sequence[int]) -> list[str]:
    return [spoken.add(i) for i in ids]


@given(sampled)
def test_what_was_told_is_what_all_the_tokens_say(ids: list[int]):
    """Whole characters, characters in pieces and bytes that are no character; hidden tokens say nothing, wherever they are."""
    hidden = WORDS.hidden_ids(())
    spoken = Spoken(WORDS.decode, hidden)
    texts = told(spoken, ids)

    assert "".join(texts) + spoken.rest() == WORDS.decode([i for i in ids if i not in hidden])
    assert [text for i, text in zip(ids, texts, strict=True) if i in hidden and text] == []


@given(sampled, st.data())
def test_what_was_told_is_never_taken_back(ids: list[int], data: st.DataObject):
    """Wherever it is looked at, the text so far is what the whole text begins with."""
    count = data.draw(st.integers(0, len(ids)))
    so_far = "".join(told(Spoken(WORDS.decode), ids[:count]))

    assert WORDS.decode(ids).startswith(so_far)


def test_a_character_of_several_tokens_is_the_last_ones():
    """Its first bytes are no text yet."""
    first, second = SINGLE.encode("é")

    assert told(Spoken(SINGLE.decode), [first, second]) == ["", "é"]


@pytest.mark.parametrize("garbage", ["lone bytes", "beginnings"])
def test_the_cost_of_a_token_does_not_grow(garbage: str):
    """Also where a model says bytes that never become a character; what comes after them is text again."""
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return SINGLE.decode(ids)

    first, second = SINGLE.encode("é")
    spoken = Spoken(decode)
    texts = told(spoken, [{"lone bytes": second, "beginnings": first}[garbage]] * 500 + SINGLE.encode("aé") * 100)

    assert max(lengths) < 40
    assert "".join(texts) == BROKEN * 500 + "aé" * 100


def test_pieces_of_a_sentencepiece_vocabulary_are_told_like_the_whole():
    """Spaces belong to the words after them, the first one is dropped, and bytes stand for what has no piece."""
    vocabulary = ["<unk>", "▁Hello", "▁", "▁world", "ly", *[f"<0x{byte:02X}>" for byte in "漢é".encode()]]
    made = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(vocabulary)}, merges=[], byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    words = ChatTokenizer(made, named={})
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 5, 6, 7, 2, 2] * 4

    spoken = Spoken(words.decode)
    texts = told(spoken, ids)

    assert texts[:10] == ["Hello", " ", " world", "ly", "", "", "漢", "", "é", " world"]
    assert "".join(texts) + spoken.rest() == words.decode(ids)


@given(st.text(alphabet="a\n é漢🙂🎉", max_size=20))
def test_characters_in_bytes_one_after_the_other_are_told_one_by_one(text: str):
    """Byte fallback decodes a run of bytes as a whole: while its last character is half, all of it is broken."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    words = ChatTokenizer(made, named={})
    ids = [256 if character == "a" else byte for character in text for byte in character.encode()]

    assert "".join(told(Spoken(words.decode), ids)) == text == words.decode(ids)


def test_markers_of_calls_and_thoughts_are_text_and_other_special_tokens_are_not():
    """What ends a turn is hidden even where it is an ordinary token."""
    made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    made.add_special_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<pad>"])
    words = ChatTokenizer(made, named={})

    assert words.hidden_ids([1]) == {1, *map(words.convert_tokens_to_ids, ["<|im_end|>", "<pad>"])}
