"""Small tokenizers made on the spot."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from seamlessflow.tokenization.tokenizer import ChatTokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = range(len(SPECIALS), len(SPECIALS) + 256)
"""Ids of the single bytes of ``byte_level``."""
CORPUS = ("the sum of three and four is seven\n\n", "what is 1 + 2 ?\n\n\n", "  hello   world ", "a b a b ab ba é 漢") * 16


@cache
def byte_level(num_merges: int = 60, corpus: tuple[str, ...] = CORPUS, bos: str | None = None) -> ChatTokenizer:
    """A token is a byte or some bytes that often stand together in the corpus, so that characters come in pieces.

    With merges, neighbouring text is encoded differently apart than together.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(alphabet) + len(SPECIALS) + num_merges
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(corpus if num_merges else [], trainer)
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    named = {"eos_token": "<|im_end|>", "bos_token": bos}
    return ChatTokenizer(made, named={name: token for name, token in named.items() if token is not None})
