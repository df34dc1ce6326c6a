"""The end of a conversation rendered alone is the end of the conversation rendered whole.

fold        ChatML, SmolLM2, the tiny model's, Qwen's (neighbours, first, last), Llama 3's, macros   has a tail
no fold     a namespace in the loop, the number of messages, the last user's message          is rendered whole
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.models.tiny import CHAT_TEMPLATE
from seamlessflow_trajectory_manager.rendering.base import KnownTurn
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate, TemplateRefused
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from tests.domain.trajectory_builders import CALC, CHATML, SMOLLM2, tokenizer

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not
           message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n' if not loop.first }}{{- '<tool_call>' + tool_call.name }}{{- tool_call.arguments | tojson }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>' + message.content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
NUMBERED = (
    "{% macro show(message, number) %}[{{ number }}] {{ message.role }}: {{ message.content }}<|im_end|>{% endmacro %}"
    "{% set greeting = 'hello ' + messages[0].content %}{{ greeting }}\n"
    "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
    "{% if message.content %}{% set seen = message.content %}{% endif %}{{ show(message, loop.index) }}{{ seen }}{{ greeting }}"
    "{% endfor %}{{ messages | length }}{% if add_generation_prompt %}{{ messages[-1].role }}>{% endif %}"
)
LAST_ONLY = CHATML.replace("message['content'] }}", "(message['content'] if loop.last else '...') }}")
ALIAS, OTHER_NAME = "{% set rows = messages %}", "in rows %}"
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|im_end|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ALIASES = {
    "llama3": LLAMA3,
    "alias": ALIAS + CHATML.replace("in messages %}", OTHER_NAME),
    "alias of an alias": ALIAS + "{% set lines = rows %}" + CHATML.replace("in messages %}", "in lines %}{{ rows[0].role }}"),
}
FOLDS = {
    **ALIASES,
    "chatml": CHATML,
    "smollm2": SMOLLM2,
    "tiny": CHAT_TEMPLATE,
    "qwen": QWEN,
    "numbered": NUMBERED,
    "last": LAST_ONLY,
}

LOOP = "{% for message in messages %}"
NO_FOLDS = {
    "namespace": "{% set ns = namespace(n=0) %}" + CHATML.replace(LOOP, LOOP + "{% set ns.n = ns.n + 1 %}{{ ns.n }}"),
    "count": CHATML.replace(LOOP, LOOP + "{{ messages | length }}"),
    "last message": CHATML.replace(LOOP, LOOP + "{{ messages[-1].role }}"),
    "count in the head": "{% set last = messages | length %}" + CHATML.replace(LOOP, LOOP + "{{ last }}"),
    "generation prompt": CHATML.replace(LOOP, LOOP + "{{ add_generation_prompt }}"),
    "far neighbour": CHATML.replace(LOOP, LOOP + "{{ messages[loop.index0 + 2].role }}"),
    "next after next": CHATML.replace(LOOP, LOOP + "{{ messages[loop.index + 1].role }}"),
    "loop as a whole": CHATML.replace(LOOP, LOOP + "{{ loop.length }}"),
    "changed": CHATML.replace(LOOP, LOOP + "{{ loop.changed(message.role) }}"),
    "break": CHATML.replace(LOOP, LOOP + "{% if message.content == 'a' %}{% break %}{% endif %}"),
    "other list": CHATML.replace("in messages %}", "in messages[1:] %}"),
    "renamed": "{% set messages = messages[1:] %}" + CHATML,
    "filtered": CHATML.replace("in messages %}", "in messages if message.role %}"),
    "cycle": "{% set c = cycler('a', 'b') %}" + CHATML.replace(LOOP, LOOP + "{{ c.next() }}"),
    "chance": CHATML.replace(LOOP, LOOP + "{{ [1, 2] | random }}"),
    "block": "{% block all %}" + CHATML + "{% endblock %}",
    "nested": CHATML.replace(LOOP, LOOP + "{% for other in messages %}{{ other.role }}{% endfor %}"),
    "macro": "{% macro all() %}{{ messages | length }}{% endmacro %}" + CHATML.replace(LOOP, LOOP + "{{ all() }}"),
    "no loop": "{{ messages[0].content }}",
    "alias of a part": "{% set rows = messages[1:] %}" + CHATML.replace("in messages %}", OTHER_NAME),
    "alias here and there": "{% if tools %}" + ALIAS + "{% endif %}" + CHATML.replace("in messages %}", OTHER_NAME),
    "alias set twice": ALIAS + "{% set rows = messages[1:] %}" + CHATML.replace("in messages %}", OTHER_NAME),
    "alias set too late": CHATML.replace("in messages %}", OTHER_NAME) + ALIAS,
    "alias of the loop": "{% set loop = messages %}" + CHATML.replace("in messages %}", "in loop %}"),
    "alias counted": ALIAS + CHATML.replace(LOOP, "{% for message in rows %}{{ rows | length }}"),
}


@cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, tokenizer().named)


class Whole(ChatTemplate):
    """Renders everything."""

    def start(self, num_before: int) -> int:
        return 0


@cache
def whole(source: str) -> Whole:
    return Whole(source, tokenizer().named)


def call(name: str) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}


texts = st.text(alphabet="ab <|im_end|>\n", max_size=12)
messages = st.one_of(
    st.builds(
        lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user", "tool", "assistant"]), texts
    ),
    st.builds(lambda names: {"role": "assistant", "content": "", "tool_calls": [call(n) for n in names]}, st.lists(texts)),
)
conversations = st.lists(messages, min_size=2, max_size=8)


@pytest.mark.parametrize("source", FOLDS.values(), ids=FOLDS)
@settings(max_examples=100, deadline=None)
@given(conversation=conversations, tools=st.sampled_from([None, [CALC]]), data=st.data())
def test_a_tail_is_the_end_of_the_whole(source: str, conversation: list[Any], tools: list[Any] | None, data: st.DataObject):
    """For every start; and the text before it is the same whatever follows the messages before."""
    under_test = template(source)
    num_before = data.draw(st.integers(min_value=2, max_value=len(conversation)))
    start = under_test.start(num_before)
    assert start == num_before - 1
    beginnings = set()
    for part, further in ((conversation[:num_before], False), (conversation, True)):
        tail = under_test.render(part, tools, add_generation_prompt=further, start=start)
        text = under_test.render(part, tools, add_generation_prompt=further)
        assert text.endswith(tail)
        beginnings.add(text[: len(text) - len(tail)])
    assert len(beginnings) == 1


@pytest.mark.parametrize("source", FOLDS.values(), ids=FOLDS)
@settings(max_examples=60, deadline=None)
@given(conversation=conversations, data=st.data())
def test_a_suffix_is_the_same_as_from_the_whole_text(source: str, conversation: list[Any], data: st.DataObject):
    """Also None, where the template shows what came before otherwise."""
    words = tokenizer()
    quick = TemplateRenderer(words, template(source), [words.eos_token_id or 0])
    slow = TemplateRenderer(words, whole(source), [words.eos_token_id or 0])
    known = KnownTurn(list, words.encode("a<|im_end|>"), data.draw(st.integers(min_value=1, max_value=len(conversation))))
    assert quick.suffix(known, conversation, [CALC]) == slow.suffix(known, conversation, [CALC])


@pytest.mark.parametrize("source", NO_FOLDS.values(), ids=NO_FOLDS)
def test_a_template_that_may_look_further_is_rendered_whole(source: str):
    """One message's text could depend on others, on chance, or on what follows."""
    assert template(source).start(5) == 0


def test_few_messages_are_read_for_a_tail():
    """The work does not grow with the history."""
    read: list[int] = []

    class Read(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    conversation = Read({"role": "user", "content": str(number)} for number in range(100))
    template(SMOLLM2).render(conversation, None, add_generation_prompt=True, start=98)
    assert set(read) <= {0, 98, 99}


def test_a_tail_refuses_as_the_whole_does():
    """In the template's own words."""
    source = CHATML.replace(LOOP, LOOP + "{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}")
    conversation = [{"role": "user", "content": "q"}, {"role": "user", "content": "r"}, {"role": "tool", "content": "s"}]
    with pytest.raises(TemplateRefused, match="no tools"):
        template(source).render(conversation, None, add_generation_prompt=True, start=1)
