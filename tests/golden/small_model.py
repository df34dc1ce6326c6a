"""The model of the golden runs: six thousand parameters, the tiny demo's tokenizer, and just enough schooling to call a tool.

It is small because weights do not compress. The runs know it by the name of the demo's model, which is looked for in the
model cache first: no path of any machine is in a journal.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from seamlessflow.models.model_folder import build_folder
from seamlessflow.models.tiny import CALL_CLOSING, CALL_OPENING, VOCAB_SIZE, make_tiny_tokenizer
from seamlessflow.models.tiny_task import noisy_demonstration, random_question

NAME = "tiny-calculator"
STEPS = 400
BATCH_SIZE = 16
TOLD_CHARACTERS = (60, 150)


def make_small_model(cache: Path) -> Path:
    """Its folder below a model cache."""
    return build_folder(cache / NAME, _write)


def _write(folder: Path) -> None:
    tokenizer = make_tiny_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            initializer_range=0.2,
            bos_token_id=tokenizer.get_vocab()["<|im_start|>"],
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    _school(model, tokenizer, random.Random(0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _school(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stream: random.Random) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        texts = [tokenizer.encode(_transcript(stream), add_special_tokens=False) for _ in range(BATCH_SIZE)]
        width = max(map(len, texts))
        ids_BT = torch.tensor([ids + [0] * (width - len(ids)) for ids in texts])
        labels_BT = torch.tensor([ids + [-100] * (width - len(ids)) for ids in texts])
        model(input_ids=ids_BT, labels=labels_BT).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _transcript(stream: random.Random) -> str:
    question = random_question(stream, held_out=False)
    if stream.random() < 0.4:
        told = "".join(stream.choices("etaoinshr  ", k=stream.randint(*TOLD_CHARACTERS)))
        return f"<|im_start|>user\nTell {question.expression}?<|im_end|>\n<|im_start|>assistant\n{told}<|im_end|>"
    shown = noisy_demonstration(stream, question)
    text = f"<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant\n"
    if shown.expression is not None:
        text += f"{CALL_OPENING}{shown.expression}{CALL_CLOSING}<|im_end|>\n"
        text += f"<|im_start|>tool\n{shown.tool_result}<|im_end|>\n<|im_start|>assistant\n"
    return f"{text}{shown.answer}<|im_end|>"
