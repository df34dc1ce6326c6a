"""The tiny model: its tokenizer, its chat template, its task's split, and that a seed makes it again."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.models.tiny import CALL_OPENING, CHARACTERS, VOCAB_SIZE, make_tiny_tokenizer
from seamlessflow.models.tiny_task import noisy_demonstration, question_of, random_question

pytest.importorskip("torch")

TOKENIZER = make_tiny_tokenizer()
CALL = {"function": {"name": "calc", "arguments": {"expression": "17+25"}}}
TURNS = [
    {"role": "user", "content": "What is 17+25?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "42"},
]


def rendered(turns: list[dict[str, object]], **settings: object) -> str:
    return str(TOKENIZER.apply_chat_template(turns, tokenize=False, **settings))


@given(st.text(alphabet=CHARACTERS, max_size=80))
def test_printable_text_survives_the_round_trip(text: str) -> None:
    """Decoding gives the very characters that were encoded, spaces and phrases included."""
    for given_text in (text, f"user{text}What is {CALL_OPENING}"):
        assert TOKENIZER.decode(TOKENIZER.encode(given_text, add_special_tokens=False)) == given_text


def test_every_token_id_is_below_the_vocabulary_size() -> None:
    """The embedding has exactly one row for each token."""
    assert len(TOKENIZER) == VOCAB_SIZE == max(TOKENIZER.get_vocab().values()) + 1


def test_a_conversation_with_a_tool_renders_as_chatml() -> None:
    """The call is JSON between tags; tool descriptions stay out, for every character is a token."""
    text = rendered(TURNS[:3], tools=[{"type": "function"}], add_generation_prompt=True)

    assert text == (
        "<|im_start|>user\nWhat is 17+25?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "calc", "arguments": {"expression": "17+25"}}</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
    )
    body = re.search("<tool_call>(.*)</tool_call>", text)
    assert body is not None
    assert json.loads(body[1]) == {"name": "calc", "arguments": {"expression": "17+25"}}


def test_arguments_given_as_text_render_like_arguments_given_as_an_object() -> None:
    """OpenAI clients send them back as a JSON string."""
    as_text = {"function": {"name": "calc", "arguments": json.dumps(CALL["function"]["arguments"])}}

    assert rendered([{**TURNS[1], "tool_calls": [as_text]}]) == rendered([TURNS[1]])


def test_each_turn_extends_the_tokens_of_the_turns_before() -> None:
    """So that a second call continues the first one's tokens instead of forking."""
    prompts = [rendered(TURNS[:n], add_generation_prompt=n % 2 == 1) for n in range(1, 5)]
    encoded = [TOKENIZER.encode(prompt, add_special_tokens=False) for prompt in prompts]

    for shorter, longer in itertools.pairwise(encoded):
        assert longer[: len(shorter)] == shorter
    assert len(encoded[1]) - len(encoded[0]) == len("17+25") + 4


def test_the_split_depends_on_the_text_alone_and_holds_out_a_fifth() -> None:
    """Whatever the seed, no question is on both sides."""
    sides = [
        {random_question(random.Random(seed), held_out=held_out).text for seed in range(400)} for held_out in (False, True)
    ]
    questions = [question_of(a, op, b) for a in range(10, 100) for b in range(10, 100) for op in "+-*"]

    assert not sides[0] & sides[1]
    assert sum(q.is_held_out for q in questions) / len(questions) == pytest.approx(0.2, abs=0.01)
    assert question_of(12, "-", 30).answer == "-18"


def test_demonstrations_are_mostly_bad_but_right_often_enough_to_be_found() -> None:
    """The mode is to guess; about a quarter call with the right expression and report the result."""
    stream = random.Random(0)
    question = question_of(17, "*", 23)
    shown = [noisy_demonstration(stream, question) for _ in range(2000)]

    assert sum(d.expression is None for d in shown) / 2000 == pytest.approx(0.6, abs=0.03)
    assert sum(d.expression == "17*23" and d.answer == "391" for d in shown) / 2000 == pytest.approx(0.26, abs=0.03)


def test_a_seed_makes_the_same_small_llama_again(tmp_path: Path) -> None:
    """Same tensors from the same seed, others from another; about a third of a million parameters; loadable."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    from seamlessflow.models import make_tiny

    folders = [make_tiny(tmp_path / str(i), seed, warm_start_steps=2) for i, seed in enumerate((1, 1, 2))]
    first, again, other = [load_file(folder / "model.safetensors") for folder in folders]

    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)
    assert 300_000 < sum(tensor.numel() for tensor in first.values()) < 400_000
    assert AutoConfig.from_pretrained(folders[0]).architectures == ["LlamaForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    assert tokenizer.apply_chat_template(TURNS, tokenize=False) == rendered(TURNS)
    assert tokenizer.eos_token == "<|im_end|>"
