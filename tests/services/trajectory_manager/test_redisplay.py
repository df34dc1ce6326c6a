"""Where a turn ends, under templates that show it otherwise once it is not the last message any more.

thoughts hidden          the suffix is the one of a template that never shows thoughts
turn not shown at all    None: nothing is made up
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seamlessflow_trajectory_manager.rendering.base import KnownTurn
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from seamlessflow_trajectory_manager.rendering.turn_boundary import end_of_turn
from tests.domain.trajectory_builders import CHATML, renderer, tokenizer

SHOWN = "message['content'] }}"
FOLD = CHATML.replace(SHOWN, "('<think>' + message.thought + '</think>' if message.thought and loop.last else '') + " + SHOWN)
LAST_QUERY = (
    "{% set ns = namespace(last=-1) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
) + CHATML.replace(SHOWN, "('<think>' + (message.thought or '') + '</think>' if loop.index0 > ns.last else '') + " + SHOWN)
"""As Qwen3's: thoughts since the last question, and empty ones where there are none."""


@cache
def under(template: str) -> TemplateRenderer:
    words = tokenizer()
    return TemplateRenderer(words, ChatTemplate(template, words.named), [words.eos_token_id or 0])


def call(text: str) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": "f", "arguments": text}}


texts = st.text(alphabet="abxy 0<|im_end|>\n", max_size=10)
turns = st.one_of(
    st.builds(lambda text: {"role": "assistant", "content": text}, texts),
    st.builds(
        lambda text, arguments: {"role": "assistant", "content": text, "tool_calls": [call(each) for each in arguments]},
        texts,
        st.lists(
            st.one_of(texts, st.sampled_from(['{"a": 0}', "{}", '{"and": "one"}', '{"a": "<|im_end|>"}'])),
            min_size=1,
            max_size=2,
        ),
    ),
)
questions = st.builds(lambda text: {"role": "user", "content": text}, texts)


@pytest.mark.parametrize("template", [FOLD, LAST_QUERY], ids=["fold", "last query"])
@settings(max_examples=200, deadline=None)
@example(
    first={"role": "user", "content": ""},
    turn={"role": "assistant", "content": "", "tool_calls": [call('{"a": "<|im_end|>"}'), call('{"and": "one"}')]},
    thought="hm",
    new=[{"role": "user", "content": ""}],
)
@given(
    first=questions,
    turn=turns,
    thought=st.sampled_from([None, "hm", "<|im_end|>"]),
    new=st.lists(questions, min_size=1, max_size=2),
)
def test_hidden_thoughts_change_no_suffix(template: str, first: Any, turn: Any, thought: str | None, new: Any):
    """Their ids stay where they were sampled, and the next suffix is what the template puts behind the turn."""
    conversation = [first, {**turn, "thought": thought}, *new]
    known = KnownTurn(list, tokenizer().encode("a<|im_end|>"), 2)
    assert under(template).suffix(known, conversation, None) == renderer().suffix(known, conversation, None)


def test_a_turn_that_is_not_shown_has_no_end():
    """Neither has one without a message behind it, or without a close token."""

    def render(messages: Any) -> str:
        return "".join(each["content"] + "." for each in messages if each["role"] == "user")

    question, turn = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    assert end_of_turn(render, [question, turn, question], 2, ["."]) is None
    assert end_of_turn(lambda messages: str(messages[1]["content"]), [question, turn, question], 2, ["."]) is None

    def shown(messages: Any) -> str:
        return "".join(messages[position]["content"] + "." for position in range(len(messages)))

    assert end_of_turn(shown, [question, turn, question], 2, ["."]) == (".q.", ".")
    assert end_of_turn(shown, [question, turn], 2, ["."]) is None
    assert end_of_turn(shown, [question, turn, question], 2, ["!"]) is None
    assert end_of_turn(lambda messages: shown(messages).replace(".", ".."), [question, turn, question], 2, ["."]) is None
