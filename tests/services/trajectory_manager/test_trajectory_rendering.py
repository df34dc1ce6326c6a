"""Messages to ids: what is encoded turn by turn equals what would be encoded at once, and sampled ids are never touched."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.errors import ConfigError
from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow_trajectory_manager.rendering.base import KnownTurn, Terms
from seamlessflow_trajectory_manager.rendering.chat_template import EPOCH, ChatTemplate, TemplateRefused
from seamlessflow_trajectory_manager.rendering.model_renderer import load_renderer
from seamlessflow_trajectory_manager.rendering.renderers_library import library_renderer
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from tests.domain.trajectory_builders import CALC, CHATML, SMOLLM2, renderer, tokenizer, user

texts = st.text(alphabet="ab 1+2=?\n\té漢", max_size=24)
new_messages = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool", "system"]), texts),
    min_size=1,
    max_size=3,
)
conversations = st.lists(st.tuples(new_messages, texts), min_size=1, max_size=4)


@pytest.mark.parametrize("template", [CHATML, SMOLLM2], ids=["chatml", "smollm2"])
@pytest.mark.parametrize("num_merges", [0, 60])
@settings(max_examples=60, deadline=None)
@given(turns=conversations, last=new_messages)
def test_turn_by_turn_equals_at_once(template: str, num_merges: int, turns: list[Any], last: list[Any]):
    """A suffix is what the whole conversation's encoding has after the last turn, also where the vocabulary has merges."""
    words, under_test = tokenizer(num_merges), renderer(template, num_merges)
    messages = turns[0][0]
    stream = under_test.render(messages, None)
    for position, (_, answer) in enumerate(turns):
        sampled = words.encode(answer + "<|im_end|>")
        stream = stream + sampled
        messages = [*messages, {"role": "assistant", "content": answer}]
        new = turns[position + 1][0] if position + 1 < len(turns) else last
        suffix = under_test.suffix(KnownTurn(list, sampled, len(messages)), [*messages, *new], None)
        messages = [*messages, *new]
        at_once = under_test.render(messages, None)
        assert suffix is not None
        assert at_once[-len(suffix) - 1 :] == [words.eos_token_id, *suffix]
        stream = stream + suffix
        # Sampled turns may be cut into tokens otherwise than an encoder would; the text is the same.
        assert words.decode(stream) == words.decode(at_once)


def test_a_turn_cut_by_its_budget_is_closed_by_the_next_suffix():
    """No <|im_end|> was sampled, so the template's is context of the next turn."""
    messages = [user("q"), {"role": "assistant", "content": "seve"}, user("go on")]
    cut = renderer().suffix(KnownTurn(list, tokenizer().encode("seve"), 2), messages, None)
    whole = renderer().suffix(KnownTurn(list, tokenizer().encode("seve<|im_end|>"), 2), messages, None)
    assert cut is not None and whole is not None
    assert tokenizer().decode(cut) == "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert cut == [tokenizer().eos_token_id, *whole]


def test_a_turn_that_says_the_close_token_does_not_confuse_the_suffix():
    """Content may hold the very text of a special token."""
    messages = [user("q"), {"role": "assistant", "content": "a<|im_end|>b"}, user("r")]
    suffix = renderer().suffix(KnownTurn(list, [tokenizer().eos_token_id or 0], 2), messages, None)
    assert suffix is not None and tokenizer().decode(suffix).startswith("\n<|im_start|>user\nr")


def test_a_template_that_rewrites_earlier_turns_gives_no_suffix():
    """Such a template shows only the last answer in full: there is no exact prefix, and we do not make one up."""
    forgetful = CHATML.replace("message['content'] }}", "(message['content'] if loop.last else '...') }}")
    words = tokenizer()
    under_test = TemplateRenderer(words, ChatTemplate(forgetful, words.named), [words.eos_token_id or 0])
    messages = [user("q"), {"role": "assistant", "content": "seven"}, user("r")]
    assert under_test.suffix(KnownTurn(list, words.encode("seven<|im_end|>"), 2), messages, None) is None


UNCLOSED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content + '\n' }}{% else %}"
    "{{ '<|im_start|>' + message.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("said", ["seven", "", " ", "se<|im_end|>ven"])
def test_a_turn_that_is_shown_without_a_close_token_is_not_said_twice(said: str):
    """The close token in front of it is the user's, and one in its own text closes nothing."""
    messages = [user("q"), {"role": "assistant", "content": said}, user("r")]
    assert renderer(UNCLOSED).suffix(KnownTurn(list, tokenizer().encode(said + "<|im_end|>"), 2), messages, None) is None


def test_a_template_that_shows_the_date_shows_always_the_same():
    """Whoever renders, and on whatever day."""
    now = datetime(2026, 11, 29, 23, 59, tzinfo=UTC)
    template = ChatTemplate("{{ strftime_now('%d %b %Y %H:%M') }}", {}, now)
    assert template.render([user("q")], None, add_generation_prompt=True) == "29 Nov 2026 23:59"


def test_a_library_renderer_that_shows_the_date_shows_always_the_same(monkeypatch: pytest.MonkeyPatch):
    """The package would show today's."""
    pytest.importorskip("renderers")
    configs: list[Any] = []

    def create(_: Any, config: Any) -> Any:
        configs.append(config)
        return SimpleNamespace(get_stop_token_ids=lambda: [0])

    monkeypatch.setattr("renderers.base.create_renderer", create)
    library_renderer(tokenizer(), "gpt-oss", now=datetime(2026, 11, 29, tzinfo=UTC))
    assert [config.conversation_start_date for config in configs] == ["2026-11-29"] * 2


def test_tool_arguments_reach_the_template_as_a_map_and_odd_content_as_text():
    """Clients send arguments as a string and content as null or parts."""
    call = {"id": "x", "type": "function", "function": {"name": "calc", "arguments": '{"e":"1+1"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    text = tokenizer().decode(renderer().render(messages, [CALC]))
    assert "<|im_start|>user\nab<|im_end|>" in text
    assert '<tool_call>{"name": "calc", "arguments": {"e": "1+1"}}</tool_call>' in text
    assert text.startswith('<|im_start|>system\n{"type": "function"')


def test_a_template_may_refuse():
    """Its words reach the agent as an error, not as a crash of the service."""
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template.render([user("q")], None, add_generation_prompt=True)


def test_parsing_hides_special_tokens_only():
    """Stop tokens are no content; characters are."""
    sampled = tokenizer().encode("seven\n<|im_end|>")
    assert renderer().parse(sampled).content == "seven\n"


@pytest.mark.parametrize(("end", "expected"), [("<think>\n", ("hm", "seven")), ("", (None, "hm</think>seven"))])
def test_a_prompt_that_ends_in_thoughts_is_answered_with_thoughts(end: str, expected: tuple[str | None, str]):
    """Whether the template opened them is seen from the prompt's last ids."""
    prompt_end = tuple(tokenizer().encode("<|im_start|>assistant\n" + end))
    parsed = renderer().parse(tokenizer().encode("hm</think>seven<|im_end|>"), Terms(prompt_end=prompt_end))
    assert (parsed.reasoning, parsed.content) == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as the trainer publishes it."""
    words = tokenizer(60)
    words._tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (tmp_path / "chat_template.jinja").write_text(SMOLLM2)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [words.eos_token_id, 0]}))
    return tmp_path


def test_a_model_folder_is_all_it_needs(folder: Path):
    """Tokenizer, template and stop tokens come from the published folder."""
    loaded = load_renderer(folder, "some/unknown-model", now=EPOCH)
    assert loaded.stop_token_ids == (0, tokenizer(60).eos_token_id)
    assert loaded.render([user("hi")], None) == renderer(SMOLLM2, 60).render([user("hi")], None)


@pytest.mark.parametrize("missing", ["tokenizer.json", "chat_template.jinja"])
def test_an_incomplete_model_folder_says_what_is_missing(folder: Path, missing: str):
    """The message names the file."""
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        load_renderer(folder, now=EPOCH)


def test_loading_a_renderer_loads_no_torch(folder: Path):
    """The manager runs where torch is not installed, and starts fast where it is."""
    script = (
        "import sys; from pathlib import Path; "
        "from seamlessflow_trajectory_manager.rendering.model_renderer import load_renderer; "
        "from seamlessflow_trajectory_manager.rendering.chat_template import EPOCH; "
        f"load_renderer(Path({str(folder)!r}), 'x', now=EPOCH); sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, env={"PYTHONPATH": f"{root}/shared:{root}"}).returncode == 0


@pytest.fixture
def qwen() -> Any:
    """The package's Qwen3 renderer over a tokenizer that has Qwen's special tokens."""
    pytest.importorskip("renderers")
    words = tokenizer(60)._tokenizer
    copy = type(words).from_str(words.to_str())
    copy.add_special_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    return library_renderer(ChatTokenizer(copy, named={"eos_token": "<|im_end|>"}), "qwen3"), ChatTokenizer(copy, named={})


def test_a_known_family_uses_the_package(qwen: Any):
    """Its bridge extends the sampled ids, reasoning included, and its parser finds calls."""
    under_test, words = qwen
    messages = [user("3+4?")]
    prompt = under_test.render(messages, [CALC])
    sampled = words.encode(
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "calc", "arguments": {"e": "3+4"}}\n</tool_call><|im_end|>'
    )
    parsed = under_test.parse(sampled, Terms([CALC]))
    assert parsed.reasoning is not None and parsed.reasoning.strip() == "hm"
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [("calc", {"e": "3+4"})]
    turn = {"role": "assistant", "content": "", "tool_calls": []}
    suffix = under_test.suffix(
        KnownTurn(lambda: prompt, sampled, 2), [*messages, turn, {"role": "tool", "content": "7"}], [CALC]
    )
    assert suffix is not None
    assert words.decode(suffix).startswith("\n<|im_start|>user\n<tool_response>\n7\n</tool_response>")
    assert under_test.stop_token_ids


def test_a_turn_that_the_package_cannot_parse_is_kept_as_text(qwen: Any, monkeypatch: pytest.MonkeyPatch):
    """It promises to parse whatever is sampled, and we do not rely on it."""
    under_test, words = qwen

    def fails(*_: object, **__: object) -> None:
        raise IndexError("no such block")

    monkeypatch.setattr(under_test._renderer, "parse_response", fails)
    parsed = under_test.parse(words.encode("it is 7 <tool_call>{<|im_end|>"), Terms([CALC]))
    assert (parsed.content, parsed.tool_calls) == ("it is 7 <tool_call>{", ())


@pytest.mark.parametrize("stop", ["is", "s 7", " 7", "</think>"])
def test_a_stop_text_cuts_what_the_package_parses(qwen: Any, stop: str):
    """Also in the middle of a token."""
    under_test, words = qwen
    text = "<think>hm</think>it is 7 of them"
    parsed = under_test.parse(words.encode(text), Terms(stop=(stop,)))
    whole = under_test.parse(words.encode(text[: text.index(stop)]))
    assert parsed.stop_sequence == stop
    assert (parsed.reasoning, parsed.content) == (whole.reasoning, whole.content)
