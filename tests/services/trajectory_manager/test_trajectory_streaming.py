"""Text while it is sampled: whatever the ids, in whatever portions, it only grows and the final message begins with it.

half a character            waits for its other half
a marker or a stop begins   waits until it is one, or is not
a call began                nothing more is shown
white space                 waits for what follows, where parsing may strip it
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow_trajectory_manager.rendering.base import Renderer, Terms
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate
from seamlessflow_trajectory_manager.rendering.renderers_library import LibraryRenderer, library_renderer
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from tests.domain.trajectory_builders import CALC, CHATML, renderer, tokenizer, user

CALL = '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
WORDS = [*MARKERS[:4], "<", "</", "think", ">", "tool_call", "hm", " ", "\n", "\n\n", "é", "漢", "{", "[", CALL[11:-12], "ab"]
FAMILIES = {
    "qwen3": [],
    "qwen3.5": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    "glm-4.5": [
        *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ],
    "minimax-m2": ["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"],
}
"""Of the package, with the special tokens that they look for beside the markers."""
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"]
STOPS = [(), ("b",), ("\n\n", "hm"), ("ab", "b<"), ("</think>",), ("abab", "m\n")]


@cache
def with_marker_tokens(*more: str) -> ChatTokenizer:
    """A tokenizer in which each marker is one token, as in Qwen's."""
    words = tokenizer(60)._tokenizer
    copy = type(words).from_str(words.to_str())
    copy.add_special_tokens([*MARKERS, *more])
    return ChatTokenizer(copy, named={"eos_token": "<|im_end|>"})


@cache
def template_renderer() -> TemplateRenderer:
    words = with_marker_tokens()
    return TemplateRenderer(words, ChatTemplate(CHATML, words.named), [words.eos_token_id or 0])


def words_of(name: str) -> ChatTokenizer:
    return with_marker_tokens(*(LLAMA if name == "llama-3" else FAMILIES[name]))


@cache
def family(name: str) -> LibraryRenderer:
    made = library_renderer(words_of(name), name)
    assert isinstance(made, LibraryRenderer)
    return made


@st.composite
def sampled(draw: st.DrawFn, words: ChatTokenizer) -> list[int]:
    """Words that matter to the parser, cut into tokens at will, among broken bytes and special tokens."""
    of_text = st.sampled_from(WORDS).map(words.encode)
    spelled = st.sampled_from(WORDS).map(lambda text: [i for character in text for i in words.encode(character)])
    anything = st.integers(0, words._tokenizer.get_vocab_size() - 1).map(lambda i: [i])
    return [i for part in draw(st.lists(of_text | spelled | anything, max_size=14)) for i in part]


@st.composite
def portions(draw: st.DrawFn, ids: Sequence[int]) -> list[Sequence[int]]:
    cuts = sorted(draw(st.sets(st.integers(0, len(ids)), max_size=6)) | {0, len(ids)})
    return [ids[start:end] for start, end in itertools.pairwise(cuts)]


def shown(under_test: Renderer, terms: Terms, parts: Sequence[Sequence[int]]) -> tuple[str, str]:
    stream = under_test.streamed(terms)
    texts = [stream.feed(part) for part in parts]
    return "".join(text for text, _ in texts), "".join(text for _, text in texts)


def check(under_test: Renderer, words: ChatTokenizer, data: st.DataObject, **terms: Any) -> None:
    ids = data.draw(sampled(words))
    asked = Terms(tools=data.draw(st.sampled_from([None, [CALC]])), stop=data.draw(st.sampled_from(STOPS)), **terms)
    reasoning, content = shown(under_test, asked, data.draw(portions(ids)))
    final = under_test.parse(ids, asked)
    assert (final.reasoning or "").startswith(reasoning)
    assert final.content.startswith(content)
    assert (reasoning, content) == shown(under_test, asked, [[each] for each in ids])


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_message_begins_with_what_was_shown_of_it(data: st.DataObject):
    """Markers spelled in bytes, or one token each."""
    spelled = data.draw(st.booleans())
    check(renderer() if spelled else template_renderer(), tokenizer() if spelled else with_marker_tokens(), data)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_also_where_the_prompt_has_opened_the_thoughts(data: st.DataObject):
    """As templates of models that always think do."""
    words = with_marker_tokens()
    check(template_renderer(), words, data, prompt_end=tuple(words.encode("<|im_start|>assistant\n<think>\n")))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_also_without_a_template(data: st.DataObject):
    """A raw completion is content, markers and all."""
    check(template_renderer(), with_marker_tokens(), data, is_raw=True)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_also_where_the_package_parses(name: str, data: st.DataObject):
    """What its parsers strip, coerce and move is not shown before they have."""
    pytest.importorskip("renderers")
    words = words_of(name)
    ends = st.sampled_from(["", "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"])
    check(family(name), words, data, prompt_end=tuple(words.encode(data.draw(ends))))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_character_with_a_marker_between_its_bytes_is_not_shown_broken(name: str):
    """Some of the package's parsers drop a second opening marker, so that the bytes around it meet."""
    pytest.importorskip("renderers")
    words = words_of(name)
    (think,) = words.encode("<think>")
    first, second = words.encode("¡")
    ids = [think, *words.encode("<"), first, think, second]
    reasoning, content = shown(family(name), Terms(), [[each] for each in ids])
    final = family(name).parse(ids, Terms())
    assert (final.reasoning or "").startswith(reasoning) and final.content.startswith(content)


def portions_of(text: str, words: ChatTokenizer | None = None) -> list[list[int]]:
    return [[each] for each in (words or tokenizer()).encode(text)]


@pytest.mark.parametrize(
    ("text", "terms", "expected"),
    [
        ("seven\n", Terms(), ("", "seven\n")),
        ("seven\n", Terms([CALC]), ("", "seven")),
        ("a < b", Terms([CALC]), ("", "a < b")),
        ("a <tool", Terms([CALC]), ("", "a")),
        ("a <tool", Terms(), ("", "a <tool")),
        ("  a " + CALL + " b", Terms([CALC]), ("", "  a")),
        (CALL + " b", Terms(), ("", CALL + " b")),
        ("<think>\n\nhm\n\n</think>\n\nseven", Terms(), ("hm", "seven")),
        ("<think>hm\nhm\n</thin", Terms(), ("hm\nhm", "")),
        ("<thin", Terms(), ("", "")),
        ("<thinner", Terms(), ("", "<thinner")),
        ("seven, Observ", Terms(stop=("Observation:",)), ("", "seven, ")),
        ("seven, Observation: x", Terms(stop=("Observation:",)), ("", "seven, ")),
        ("it abc", Terms(stop=("abcd", "b")), ("", "it a")),
        ("<think>hm STOP</think>seven", Terms(stop=("STOP",)), ("hm ", "")),
    ],
)
def test_as_much_is_shown_as_is_certain(text: str, terms: Terms, expected: tuple[str, str]):
    """Nothing is held back without a reason."""
    assert shown(renderer(), terms, portions_of(text)) == expected


def test_half_a_character_is_not_shown():
    """Not even as a replacement character; nor is it when the answer ends there."""
    *most, last = tokenizer().encode("a漢")
    stream = renderer().streamed()
    assert [stream.feed([each]) for each in most] == [("", "a"), ("", ""), ("", "")]
    assert stream.feed([last]) == ("", "漢")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\nit is seven, say I", ("hm", "it is seven, say I")),
        ("qwen3", "it is seven " + CALL, ("", "it is seven")),
        ("qwen3", "it is <b>", ("", "it is")),
        ("qwen3", '{"name": "calc"}', ("", "")),
        ("qwen3", CALL, ("", "")),
        ("glm-4.5", "hm</think>seven <tool_call>calc<arg_key>e</arg_key>", ("hm", "seven")),
        ("llama-3", "it is seven", ("", "it is seven")),
        ("llama-3", ' {"name": "calc", "parameters": {}}', ("", "")),
    ],
)
def test_a_family_of_the_package_is_read_along_too(name: str, text: str, expected: tuple[str, str]):
    """Its parser is asked once for each stretch, not once for each token."""
    pytest.importorskip("renderers")
    end = tuple(family(name).render([user("q")], [CALC])[-20:])
    assert shown(family(name), Terms([CALC], prompt_end=end), portions_of(text, words_of(name))) == expected


def test_thoughts_that_the_prompt_opened_are_read_along():
    """The package is told how the prompt ended."""
    pytest.importorskip("renderers")
    words = words_of("qwen3.5")
    terms = Terms(prompt_end=tuple(words.encode("<|im_start|>assistant\n<think>\n")))
    text = "hm hm\n</think>\n\nseven"
    assert shown(family("qwen3.5"), terms, portions_of(text, words)) == ("hm hm", "seven")
    parsed = family("qwen3.5").parse(words.encode(text), terms)
    assert (parsed.reasoning, parsed.content) == ("hm hm", "seven")


def test_a_parser_that_does_not_confirm_the_text_lets_nothing_be_shown(monkeypatch: pytest.MonkeyPatch):
    """Then the answer comes as a whole, and the parser is not asked for ever."""
    pytest.importorskip("renderers")
    asked = []

    def parse_response(ids: list[int], **_: object) -> object:
        asked.append(len(ids))
        return type("Response", (), {"content": "otherwise", "reasoning_content": None, "tool_calls": []})

    monkeypatch.setattr(family("qwen3")._renderer, "parse_response", parse_response)
    assert shown(family("qwen3"), Terms(), portions_of("a b c " * 20, with_marker_tokens())) == ("", "")
    assert len(asked) < 10


def test_the_cost_of_a_token_does_not_grow():
    """A long answer in small portions, also where nothing is certain: the second half costs about what the first does."""
    words, text = tokenizer(), "the sum of three and four is seven\n\n" * 700
    for terms, said in ((Terms([CALC]), text), (Terms([CALC]), "\n" * len(text)), (Terms(stop=("x" * 20,)), "x" * len(text))):
        ids, stream = words.encode(said), renderer().streamed(terms)
        seconds = []
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            began = time.process_time()
            for start in range(0, len(half), 4):
                stream.feed(half[start : start + 4])
            seconds.append(time.process_time() - began)
        assert seconds[1] < 3 * seconds[0] + 0.05
