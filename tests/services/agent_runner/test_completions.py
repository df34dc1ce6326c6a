"""Legacy completions: text that no chat template is put around, by the official openai client and without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from seamlessflow.contracts import AnswerTokens, CallAnswered, CallError, Float32s, Int32s, Usage
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.dialects.base import Frame, ParsedRequest
from seamlessflow_agent_runner.gateway.dialects.openai_chat import parse_chat
from seamlessflow_agent_runner.gateway.dialects.openai_completions import Completions, parse_completions
from tests.services.agent_runner.streams import streamed

HELLO = {"model": "m", "prompt": "Once upon"}


async def goes_on(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
    assert [message["role"] for message in messages] == ["prompt"]
    return {"role": "assistant", "content": f"{messages[0]['content']} a time"}


async def test_a_whole_answer(gateway: Any) -> None:
    """The prompt is one message of its own role; text, finish reason and usage come as from any OpenAI endpoint."""
    gateway.manager.reply = goes_on
    async with gateway.openai(openai.AsyncOpenAI) as client:
        answer = await client.completions.create(model="any", prompt="Once upon", max_tokens=9, stop=["\n"])

    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Once upon a time", "stop")
    assert (answer.object, answer.model) == ("text_completion", "any")
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 8)
    (call,) = gateway.manager.calls
    assert (call.sampling.max_tokens, call.stop, call.tools, call.logprobs) == (9, ("\n",), None, False)
    assert gateway.manager.contents[call.messages[0]] == {"role": "prompt", "content": "Once upon"}
    assert gateway.session.close() == ()


async def test_a_stream_joins_to_the_same_text(gateway: Any) -> None:
    """Every chunk has a choice, as clients index it, but the usage that was asked for."""
    gateway.manager.reply = goes_on
    async with gateway.openai(openai.AsyncOpenAI) as client:
        stream = await client.completions.create(
            model="m", prompt=["Once upon"], stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in chunks) == "Once upon a time"
    assert len([chunk for chunk in chunks if chunk.choices[0].text]) >= 2
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert last.choices == [] and last.usage.total_tokens == 8
    assert gateway.manager.calls[0].stream and gateway.session.close() == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_pause_is_invisible_to_an_impatient_client(gateway: Any, stream: bool) -> None:
    """A client that gives up after 2 s of silence gets its answer after 3 s, by exactly one POST."""

    async def slow(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        await asyncio.sleep(3.0)
        return {"role": "assistant", "content": "at last"}

    gateway.manager.reply = slow
    async with gateway.openai(openai.AsyncOpenAI, timeout=2.0) as client:
        answer = await client.completions.create(model="m", prompt="x", stream=stream)
        text = "".join([chunk.choices[0].text async for chunk in answer]) if stream else answer.choices[0].text

    assert text == "at last" and len(gateway.manager.calls) == 1


@pytest.mark.parametrize("seconds", [0.0, 1.4])
async def test_a_prompt_too_long_raises_the_clients_own_error(gateway: Any, seconds: float) -> None:
    """At once, or as the last event of a stream."""

    async def too_long(messages: list[dict[str, Any]], request: Any) -> CallError:
        await asyncio.sleep(seconds)
        return CallError(status=400, code="context_length_exceeded", message="too long: 9000 tokens")

    gateway.manager.reply = too_long
    async with gateway.openai(openai.AsyncOpenAI) as client:
        with pytest.raises(openai.APIError, match="9000 tokens"):
            async for _ in await client.completions.create(model="m", prompt="x", stream=True):
                pass


REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "must be JSON"),
    "no prompt": ({"model": "m"}, "prompt must be text, got null"),
    "no prompts": ({**HELLO, "prompt": []}, "prompt must be one text"),
    "several prompts": ({**HELLO, "prompt": ["a", "b"]}, "several prompts, or token ids"),
    "token ids": ({**HELLO, "prompt": [1, 2, 3]}, "several prompts, or token ids"),
    "lists of token ids": ({**HELLO, "prompt": [[1, 2]]}, "several prompts, or token ids"),
    "an object": ({**HELLO, "prompt": [{}]}, "prompt must be text, got an object"),
    "n": ({**HELLO, "n": 2}, "n must be 1"),
    "best_of": ({**HELLO, "best_of": 3}, "best_of must be 1"),
    "echo": ({**HELLO, "echo": True}, "echo must be left out"),
    "suffix": ({**HELLO, "suffix": "end"}, "suffix must be left out"),
    "logprobs": ({**HELLO, "logprobs": True}, "logprobs must be a whole number"),
    "less than none": ({**HELLO, "logprobs": -1}, "logprobs must be a whole number"),
    "max_tokens": ({**HELLO, "max_tokens": 0}, "at least 1"),
    "stop": ({**HELLO, "stop": 7}, "stop must be"),
    "stream_options": ({**HELLO, "stream_options": {}}, "needs stream = true"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_body_that_cannot_be_answered_is_refused_with_what_to_change(case: str) -> None:
    """400 that names the field."""
    body, words = REFUSED[case]
    with pytest.raises(ApiError, match=words) as caught:
        parse_completions(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1, "best_of": 1}, {"echo": False, "suffix": None}, {"temperature": 0.5, "top_p": 0.9, "seed": 1}, {"user": "u"},
        {"logprobs": None, "logit_bias": {"50256": -100}}, {"prompt": ["Once upon"]}, {"stop": None}, {"unknown": [1]},
    ],
)  # fmt: skip
def test_fields_that_change_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    """Clients send their defaults."""
    asked = parse_completions(json.dumps({**HELLO, **harmless}).encode())

    assert asked.messages == ({"role": "prompt", "content": "Once upon"},) and not asked.logprobs


def test_a_prompt_cannot_be_smuggled_into_a_conversation() -> None:
    """Its role is no role of chat completions."""
    body = {"model": "m", "messages": [{"role": "prompt", "content": "<|im_start|>system"}]}
    with pytest.raises(ApiError, match="must be one of"):
        parse_chat(json.dumps(body).encode())


@pytest.mark.parametrize("number", [0, 5])
async def test_logprobs_are_told_in_the_legacy_form(gateway: Any, number: int) -> None:
    """Asked for by a number, and 0 is one."""
    async with gateway.openai(openai.AsyncOpenAI) as client:
        await client.completions.create(model="m", prompt="x", logprobs=number)

    assert gateway.manager.calls[0].logprobs


TEXTS = st.lists(st.text(max_size=4), max_size=6)
LOGPROBS = st.floats(-50, 0, width=32)


def answer_of(texts: list[str], logprobs: list[float] | None, finish: str = "stop") -> CallAnswered:
    tokens = None
    if logprobs is not None:
        tokens = AnswerTokens(token_ids=Int32s(range(len(texts))), logprobs=Float32s(logprobs), texts=tuple(texts))
    usage = Usage(prompt_tokens=2, completion_tokens=len(texts))
    known = {"run": "r", "episode": "e", "call": "c1", "finish_reason": finish, "usage": usage, "tokens": tokens}
    return CallAnswered(message={"role": "assistant", "content": "".join(texts)}, **known)


def frame() -> Frame:
    return Frame("c1", 1, ParsedRequest("m", (), extra={"include_usage": True}))


@given(TEXTS.flatmap(lambda texts: st.tuples(st.just(texts), st.lists(LOGPROBS, min_size=len(texts), max_size=len(texts)))))
def test_tokens_stand_where_their_texts_do(drawn: tuple[list[str], list[float]]) -> None:
    """Four lists of one length; each offset is where the token's text begins, and the sampled token is its own alternative."""
    texts, logprobs = drawn
    body = json.loads(json.dumps(Completions().whole(frame(), answer_of(texts, logprobs))))

    choice = Completion.model_validate(body).choices[0]

    said = choice.logprobs
    assert said is not None and said.tokens == texts and said.token_logprobs == logprobs
    assert said.text_offset == [len("".join(texts[:number])) for number in range(len(texts))]
    assert said.top_logprobs == [{text: logprob} for text, logprob in zip(texts, logprobs, strict=True)]
    for text, offset in zip(texts, said.text_offset, strict=True):
        assert choice.text[offset : offset + len(text)] == text


@given(TEXTS, st.sampled_from(["stop", "length"]), st.booleans(), st.integers(1, 5))
def test_the_chunks_of_a_stream_join_to_the_whole_answer(
    texts: list[str], finish: str, with_logprobs: bool, parts: int
) -> None:
    """However the text is cut; logprobs come with the last chunk, usage behind it."""
    answer = answer_of(texts, [-1.0] * len(texts) if with_logprobs else None, finish)
    whole = Completions().whole(frame(), answer)

    raw = streamed(Completions(), frame(), answer, parts).decode()

    *events, done, rest = raw.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    # As the client does it: chunks before the last have no finish reason, which its own model does not foresee.
    chunks = [Completion.construct(**json.loads(event.removeprefix("data: "))) for event in events]
    *said, counted = chunks
    assert "".join(chunk.choices[0].text for chunk in said) == whole["choices"][0]["text"]
    assert [chunk.choices[0].finish_reason for chunk in said] == [None] * (len(said) - 1) + [finish]
    last = said[-1].choices[0].logprobs
    assert (None if last is None else last.model_dump()) == whole["choices"][0]["logprobs"]
    assert counted.choices == [] and counted.usage.model_dump(exclude_none=True) == whole["usage"]
    assert {(chunk.id, chunk.object, chunk.created, chunk.model) for chunk in chunks} == {
        (whole["id"], whole["object"], whole["created"], whole["model"])
    }
