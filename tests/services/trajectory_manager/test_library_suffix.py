"""Suffixes of the ``renderers`` package: the end of the prompt is enough, and thoughts stay where they were sampled."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow_trajectory_manager.rendering.base import KnownTurn
from seamlessflow_trajectory_manager.rendering.renderers_library import library_renderer
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from seamlessflow_trajectory_manager.trajectory.prompt_plan import HEADER_TOKENS
from tests.domain.trajectory_builders import Agent, Engine, tokenizer, user

pytest.importorskip("renderers")

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
texts = st.text(alphabet="ab \n", max_size=8)


@cache
def qwen() -> tuple[Any, ChatTokenizer]:
    """The Qwen3 renderer over a tokenizer with Qwen's special tokens."""
    words = tokenizer(60)._tokenizer
    copy = type(words).from_str(words.to_str())
    copy.add_special_tokens([*MARKERS, "<|file_sep|>"])
    tokens = ChatTokenizer(copy, named={"eos_token": "<|im_end|>"})
    return library_renderer(tokens, "qwen3"), tokens


@settings(max_examples=100, deadline=None)
@given(
    long=st.integers(min_value=0, max_value=400),
    said=st.sampled_from(["a<|im_end|>", "<think>\nh\n</think>\n\na<|im_end|>", "<think>\nh", "a", "<tool_call>"]),
    new=st.lists(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool"]), texts), max_size=3
    ),
)
def test_the_end_of_the_prompt_is_enough(long: int, said: str, new: list[Any]):
    """A suffix does not depend on how much of what came before is shown."""
    under_test, words = qwen()
    messages = [user("ab " * long), {"role": "assistant", "content": "a"}, *new]
    prompt, sampled = under_test.render(messages[:1], None), words.encode(said)
    whole = under_test.suffix(KnownTurn(lambda: prompt, sampled, 2), messages, None)
    assert under_test.suffix(KnownTurn(lambda: prompt[-HEADER_TOKENS:], sampled, 2), messages, None) == whole


@pytest.mark.parametrize("history", ["as_sampled", "as_template"])
def test_thoughts_before_a_new_question_stay_as_sampled(history: Any):
    """The model's template would show them no more."""
    under_test, words = qwen()
    manager, agent, engine = Manager(under_test, 2000, history), Agent(), Engine()

    def turn(messages: list[Any], said: str) -> tuple[Any, dict[str, Any]]:
        (request,) = manager.apply(agent.asks(messages))
        events = engine.generates(request, words.encode(said))  # type: ignore[arg-type]
        (answer,) = (each for event in events for each in manager.apply(event))
        return request, answer.message  # type: ignore[attr-defined]

    _, first = turn([user("q")], "<think>\nhm\n</think>\n\nseven<|im_end|>")
    second, _ = turn([user("q"), first, user("r")], "eight<|im_end|>")
    assert (second.parent == "c0") == (history == "as_sampled")
    assert ("hm" in words.decode(engine.fed["c1"])) == (history == "as_sampled")
