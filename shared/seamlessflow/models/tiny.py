"""A Llama of 0.34 M parameters, made on the spot and deliberately bad at its task (tiny_task): something to teach.

The warm start first teaches the form (ChatML, the tool call, copying) and then spoils it with noisy demonstrations,
about 12 CPU seconds in all; what is left for RL is to prefer the behaviour that is right.
Same seed and steps on the same machine with the same number of threads: same weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .model_folder import build_folder, is_model_folder
from .tiny_task import Demonstration, Question, noisy_demonstration, random_question, right_demonstration

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast


# The tiny model's tokenizer: one token per character, a few set phrases, ChatML.
#
# The phrases make a tool call six tokens instead of eighty, without changing its text: what is decoded is plain JSON
# between ``<tool_call>`` and ``</tool_call>``. Text outside printable ASCII and newline becomes ``<unk>``.


SPECIAL_TOKENS = ("<unk>", "<|im_start|>", "<|im_end|>")
CALL_OPENING = '<tool_call>{"name": "calc", "arguments": {"expression": "'
CALL_CLOSING = '"}}</tool_call>'
PHRASES = ("system", "user", "assistant", "tool", "What is ", CALL_OPENING, CALL_CLOSING)
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
VOCAB_SIZE = len(SPECIAL_TOKENS) + len(CHARACTERS) + len(PHRASES)

# Tools are left out of the prompt on purpose: the model knows its one tool, and every character would be a token.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
<tool_call>{"name": "{{ function.name }}", "arguments": \
{{ function.arguments if function.arguments is string else function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Build it from nothing; the same every time. eos and pad are ``<|im_end|>``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *CHARACTERS])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(phrase, normalized=False) for phrase in PHRASES])
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call] # transformers' own
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


WARM_START_STEPS = 180
GOOD_SHARE = 2 / 3
"""Of the steps, the first ones, that show right demonstrations only: copying is learned before it is spoiled."""
BATCH_SIZE = 32
LEARNING_RATE = 3e-3
NOISY_LEARNING_RATE = 1e-3
MAX_POSITIONS = 512


def make_tiny(target: Path, seed: int, *, warm_start_steps: int = WARM_START_STEPS) -> Path:
    """Make sure that ``target`` holds the tiny model, and return it; an existing one is left as it is.

    Saved in float32. Leaves torch's global random state alone.
    """
    if is_model_folder(target):
        return target
    return build_folder(target, lambda folder: _write(folder, seed, warm_start_steps))


def _write(folder: Path, seed: int, warm_start_steps: int) -> None:
    import torch

    tokenizer = make_tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _new_model(tokenizer)
        _warm_start(model, tokenizer, random.Random(seed), warm_start_steps)  # noqa: S311 - training data, not secrets
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _new_model(tokenizer: PreTrainedTokenizerFast) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        # Wider than usual, and a short RoPE period: attention that copies forms within a hundred steps.
        initializer_range=0.06,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        bos_token_id=tokenizer.get_vocab()["<|im_start|>"],
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def _warm_start(model: Any, tokenizer: PreTrainedTokenizerFast, stream: random.Random, steps: int) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    model.train()
    for step in range(steps):
        is_good = step < steps * GOOD_SHARE
        rate = LEARNING_RATE * min(1.0, (step + 1) / 20) if is_good else NOISY_LEARNING_RATE
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids_BT, labels_BT = _batch(tokenizer, stream, right_demonstration if is_good else noisy_demonstration)
        model(input_ids=ids_BT, labels=labels_BT).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def _batch(
    tokenizer: PreTrainedTokenizerFast,
    stream: random.Random,
    demonstrate: Callable[[random.Random, Question], Demonstration],
) -> tuple[torch.Tensor, torch.Tensor]:
    """BATCH_SIZE transcripts of training questions, padded on the right: ids and labels [B, T]."""
    import torch

    questions = [random_question(stream, held_out=False) for _ in range(BATCH_SIZE)]
    examples = [_example(tokenizer, question, demonstrate(stream, question)) for question in questions]
    width = max(len(ids) for ids, _ in examples)
    ids_BT = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in examples])
    labels_BT = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in examples])
    return ids_BT, labels_BT


def _example(tokenizer: PreTrainedTokenizerFast, question: Question, shown: Demonstration) -> tuple[list[int], list[int]]:
    """Ids and labels of one transcript; labels are -100 wherever the model does not speak."""
    parts = [(f"<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant\n", False)]
    if shown.expression is not None:
        parts.append((f"{CALL_OPENING}{shown.expression}{CALL_CLOSING}<|im_end|>", True))
        parts.append((f"\n<|im_start|>tool\n{shown.tool_result}<|im_end|>\n<|im_start|>assistant\n", False))
    parts.append((f"{shown.answer}<|im_end|>", True))
    ids: list[int] = []
    labels: list[int] = []
    for text, is_spoken in parts:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        ids += encoded
        labels += encoded if is_spoken else [-100] * len(encoded)
    return ids, labels
