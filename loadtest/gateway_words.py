"""Text of a known length in tokens, and a model folder without a model that counts it so: tokenizer and chat template.

The tokenizer is made on the spot (byte-level BPE over invented words), so nothing is downloaded and a word is one token.
"""

from __future__ import annotations

import json
import random
from itertools import product

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

END = "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FRAME_TOKENS = 8
"""What the template puts around a single message, about."""

_WORDS = ["".join(parts) for parts in product(("ba", "de", "fi", "go", "lu", "ma", "no", "ri"), repeat=3)]


def model_files() -> dict[str, bytes]:
    """What a trainer would publish for the manager."""
    config = {"eos_token": END, "chat_template": TEMPLATE}
    return {"tokenizer.json": make_tokenizer().to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}


def make_tokenizer() -> Tokenizer:
    """The same one each time; it takes well under a second."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{word} {word}" for word in _WORDS] * 2, trainer)
    return tokenizer


def text(num_tokens: int, seed: int) -> str:
    """Words of one token each; another seed gives another text."""
    return " ".join(random.Random(seed).choices(_WORDS, k=num_tokens))
