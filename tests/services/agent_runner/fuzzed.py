"""Requests as no client should send them, and as some do: valid ones, damaged in their values, their bytes, their headers.

a body that is understood ─▶ values replaced, removed, nested ─▶ JSON ─▶ bytes cut, flipped, encoded otherwise
a path, of a dialect or none, plain or below /e/<who>                    keys: right, of others, of nobody, two at once
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
FUNCTION = {"name": "calc", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"id": "call_c0_0", "type": "function", "function": {"name": "calc", "arguments": '{"a": 1}'}}

VALID: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": "m", "stop": ["\n"], "max_tokens": 8, "logprobs": True, "tool_choice": "auto", "parallel_tool_calls": True,
        "tools": [{"type": "function", "function": FUNCTION}], "temperature": 0.5, "n": 1, "metadata": {"a": "b"},
        "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "3 + 4?"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_c0_0", "content": "7"}, {"role": "user", "content": "Thanks!", "name": "u"},
        ],
    },
    COMPLETIONS: {
        "model": "m", "prompt": "Once upon", "stop": "\n", "max_tokens": 8, "logprobs": 2, "n": 1, "best_of": 1, "echo": False,
        "suffix": None, "temperature": 1, "logit_bias": {"1": -100}, "user": "u",
    },
    RESPONSES: {
        "model": "m", "instructions": "Be brief.", "store": False, "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 8, "tool_choice": "auto", "parallel_tool_calls": False, "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"}, "metadata": {}, "truncation": "disabled",
        "tools": [
            {"type": "function", **FUNCTION}, {"type": "web_search"},
            {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", **FUNCTION}]},
        ],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "3 + 4?"}]},
            {"type": "reasoning", "id": "rs_c0_0", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "reasoning", "encrypted_content": "sf1.c0.aG0="},
            {"type": "message", "role": "assistant", "id": "msg_x", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "call_c0_0", "name": "calc", "arguments": "{}", "namespace": "n"},
            {"type": "function_call_output", "call_id": "call_c0_0", "output": "7"},
        ],
    },
    MESSAGES: {
        "model": "m", "max_tokens": 8, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["\n"],
        "tools": [{"name": "calc", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "thinking": {"type": "enabled", "budget_tokens": 9},
        "metadata": {"user_id": "u"},
        "messages": [
            {"role": "user", "content": "3 + 4?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "seamlessflow-c0"}, {"type": "text", "text": "I add."},
                    {"type": "tool_use", "id": "call_c0_0", "name": "calc", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_c0_0", "content": "7"}]},
        ],
    },
}  # fmt: skip


def nested(levels: int, opening: Any = list) -> Any:
    """A value that deep."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if opening is list else {"a": value}
    return value


WORDS = st.text(max_size=6) | st.text(st.characters(categories=["Cs", "Cc", "Lo"]), max_size=3)
ODD_WORDS = st.sampled_from(
    [
        "", "\x00", "\ud800", "\udfff\ud800", "call_c0_0", "resp_c0", "rs_c0_0", "prompt", "assistant", "tool", "required",
        "seamlessflow-c0", "sf1.c0.!!", "x-anthropic-billing-header: x", "{{ x }}", "<|im_start|>", "web_search", "any",
        "item_reference", "a" * 70_000,
    ]
)  # fmt: skip
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 1e308, 0.5])
DEEP = st.builds(nested, st.sampled_from([3, 90, 97, 101, 260, 480, 520]), st.sampled_from([list, dict]))
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | ODD_WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | ODD_WORDS, inner, max_size=3),
    max_leaves=6,
)
VALUES = JUNK | DEEP


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each place in a body: what holds it, and the key or index there."""
    found: list[tuple[Any, Any]] = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        found += [(value, key), *places(below)]
    return found


@st.composite
def damaged(draw: st.DrawFn, valid: dict[str, Any]) -> Any:
    """A valid body with up to three changes."""
    body: Any = copy.deepcopy(valid)
    if draw(st.booleans()):
        body["stream"] = draw(st.sampled_from([True, True, False, None, "yes"]))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        holder, key = draw(st.sampled_from(places(body)))
        change = draw(st.sampled_from(["replace", "replace", "remove", "add", "wrap", "double"]))
        if change == "remove":
            del holder[key]
        elif change == "wrap":
            holder[key] = [holder[key]]
        elif change == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif change == "add" and isinstance(holder, dict):
            holder[draw(WORDS | st.sampled_from(["type", "role", "content", "id", "turn", "name", "tools", "prompt"]))] = draw(
                VALUES
            )
        else:
            holder[key] = draw(VALUES)
        if not places(body):
            break
    return body


@st.composite
def raw_bodies(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """Mostly JSON."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.binary(max_size=40))
    body = draw(VALUES) if kind == 1 else draw(damaged(valid))
    text = json.dumps(body, ensure_ascii=draw(st.booleans()))
    if kind == 2:
        return text.encode(draw(st.sampled_from(["utf-16", "utf-32", "utf-8-sig"])), "surrogatepass")
    raw = text.encode("utf-8", "surrogatepass")
    if kind > 4:
        return raw
    chance = draw(st.randoms(use_true_random=False))
    return broken(raw, chance)


NUMERALS = [
    b"NaN",
    b"-Infinity",
    b"1e999999",
    b"9" * 5000,
    b"-0",
    b"1" + b"0" * 400,
    b"0x1",
    b"1.",
    b"\xff\xfe",
    b"\xed\xa0\x80",
]


def broken(raw: bytes, chance: random.Random) -> bytes:
    """Bytes cut off, overwritten or put in."""
    at = chance.randrange(len(raw) + 1)
    match chance.randrange(4):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :]
        case 2:
            return raw[:at] + chance.choice(NUMERALS) + raw[at:]
        case _:
            return raw + raw[at:]


@dataclass(frozen=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    raw: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Keys:
    """What a client may know, or guess."""

    ours: str
    episode: str
    others: str
    others_episode: str
    ended: str


TEXT_HEADERS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
ODD_HEADERS = st.dictionaries(
    st.sampled_from(
        ["x-stainless-retry-count", "Content-Type", "Accept", "x-stainless-timeout", "Cookie", "Range", "anthropic-beta"]
    ),
    TEXT_HEADERS | st.sampled_from(["9" * 4000, "-1", "application/json; charset=utf-7", "*/*", "text/event-stream", "²"]),
    max_size=2,
)
ENCODINGS = st.sampled_from(["gzip", "deflate", "br", "identity", "zstd", "nonsense"])


@st.composite
def requests(draw: st.DrawFn, keys: Keys) -> Request:
    """Mostly of our own episode."""
    path = draw(st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES]))
    raw = draw(raw_bodies(VALID[path]))
    if draw(st.sampled_from([True, True, False])):
        return Request("POST", path, raw, {"x-api-key": keys.ours})
    who = draw(
        st.sampled_from([""] * 10 + [keys.episode, keys.ours, keys.others_episode, keys.ended, "nobody", "%00", "%2e%2e"])
    )
    tail = draw(
        st.sampled_from(
            [path] * 24 + [f"{MESSAGES}/count_tokens", "/v1/models", "/v1/models/a/b%20c", "/v1/nowhere", "//v1", "/"]
        )
    )
    method = draw(st.sampled_from(["POST"] * 24 + ["GET", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"]))
    key = draw(st.sampled_from([keys.ours] * 16 + [keys.others, keys.ended, "sf-guessed", "", "é"]))
    scheme = draw(st.sampled_from(["Bearer "] * 8 + ["bearer  ", "Basic ", ""]))
    headers = {"Authorization": scheme + key} if draw(st.integers(0, 3)) else {"x-api-key": key}
    if method == "POST" and draw(st.integers(0, 9)) == 0:
        headers["Content-Encoding"] = draw(ENCODINGS)
        headers["Connection"] = "close"  # where the end of a body cannot be found, nothing can follow it
    return Request(method, (f"/e/{who}" if who else "") + tail, raw, {**headers, **draw(ODD_HEADERS)})


def varied(request: Request, chance: random.Random) -> list[Request]:
    """A request, and three more of it: its body broken, broken again, and sent to another dialect."""
    broken_once = replace(request, raw=broken(request.raw, chance))
    elsewhere = replace(request, path=chance.choice(list(VALID)))
    return [request, broken_once, replace(broken_once, raw=broken(broken_once.raw, chance)), elsewhere]


def drawn(strategy: st.SearchStrategy[T], number: int, *, anew: bool) -> list[T]:
    """So many examples. ``anew``: others with each run; what fails shows itself, so none is lost."""
    examples: list[T] = []

    @settings(
        max_examples=number,
        database=None,
        derandomize=not anew,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        examples.append(example)

    run: Callable[[], None] = collect
    run()
    return examples
