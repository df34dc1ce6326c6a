"""What is asked of vLLM and SGLang, and what is believed of their answers.

| promise | test |
|---|---|
| an answer in any pieces is the answer | test_an_answer_cut_into_any_events_* |
| what cannot be used is the server's fault, and none of it counts | test_an_event_that_* |
| everything that bends the distribution is said | test_a_request_* |
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.remote.http_client import ServerNonsense
from seamlessflow_rollout_worker.engines.remote.server_apis import (
    Answer,
    Ask,
    CompletionsDialect,
    Dialect,
    Ending,
    Piece,
    SglangDialect,
    TokensDialect,
    seed_of_attempt,
)

VOCAB_SIZE = 50
STOP = 49
DIALECTS = {"vllm": TokensDialect(), "completions": CompletionsDialect(), "sglang": SglangDialect()}
TOKENS = st.lists(st.tuples(st.integers(0, STOP - 1), st.floats(-30, 0)), min_size=1, max_size=20)


def asked(max_tokens: int = 20, label: str | None = None, **changes: Any) -> Ask:
    settings: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 99, "stop_token_ids": (STOP,), "seed": 5}
    return Ask("r.0", [1, 2, 3], SamplingParams(**{**settings, **changes}), max_tokens, label, "m")


def event(api: str, sofar: list[tuple[int, float]], fresh: list[tuple[int, float]], ending: str | None) -> dict[str, Any]:
    """As the server of this name would say it."""
    ids, logprobs = [i for i, _ in fresh], [p for _, p in fresh]
    if api == "vllm":
        content = [{"token_id": i, "logprob": p} for i, p in fresh]
        return {"choices": [{"token_ids": ids, "logprobs": {"content": content}, "finish_reason": ending}]}
    if api == "completions":
        return {"choices": [{"token_ids": ids, "text": "", "logprobs": {"token_logprobs": logprobs}, "finish_reason": ending}]}
    pairs = [(p, i, None) for i, p in (fresh if api == "sglang" else [*sofar, *fresh])]
    reason = {"type": ending} if ending else None
    return {
        "meta_info": {
            "output_token_logprobs": pairs,
            "output_token_logprobs_length": len(sofar) + len(fresh),
            "finish_reason": reason,
        }
    }


def dialect_of(api: str) -> Dialect:
    return DIALECTS[api.removesuffix("-repeating")]


@pytest.mark.parametrize("api", ["vllm", "completions", "sglang", "sglang-repeating"])
@given(tokens=TOKENS, cuts=st.sets(st.integers(0, 20)), ending=st.sampled_from(["stop", "length", "abort"]))
def test_an_answer_cut_into_any_events_is_the_answer(
    api: str, tokens: list[tuple[int, float]], cuts: set[int], ending: str
) -> None:
    """One event a token, several at once, empty ones in between: the same ids and logprobs come out, once each."""
    if ending == "stop":
        tokens = [*tokens, (STOP, -1.0)]
    answer = Answer(asked(len(tokens) + (ending != "length")), dialect_of(api).reader(), vocab_size=VOCAB_SIZE)
    places = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    pieces: list[Piece] = []
    for begin, end in itertools.pairwise(places):
        is_last = end == len(tokens)
        pieces.append(answer.take(event(api, tokens[:begin], tokens[begin:end], ending if is_last else None)))

    assert [i for piece in pieces for i in piece.token_ids] == [i for i, _ in tokens]
    assert [p for piece in pieces for p in piece.logprobs] == [p for _, p in tokens]
    assert pieces[-1].ending is Ending(ending)


@pytest.mark.parametrize("api", ["vllm", "completions", "sglang"])
def test_an_end_that_comes_by_itself_is_believed(api: str) -> None:
    """The stop token first, the word that it stopped afterwards."""
    answer = Answer(asked(), dialect_of(api).reader(), vocab_size=VOCAB_SIZE)
    told = [(4, -0.5), (STOP, -0.1)]
    answer.take(event(api, [], told, None))

    assert answer.take(event(api, told, [], "stop")) == Piece((), (), Ending.STOP)


@pytest.mark.parametrize("api", ["vllm", "completions", "sglang"])
@pytest.mark.parametrize(
    ("fresh", "ending", "why"),
    [
        ([(VOCAB_SIZE, -1.0)], None, "an id that is none"),
        ([(-1, -1.0)], None, "an id that is none"),
        ([("7", -1.0)], None, "a text instead of an id"),
        ([(7, None)], None, "no logprob"),
        ([(7, float("nan"))], None, "a logprob that is no number"),
        ([(7, -(10**400))], None, "a logprob that is no float"),
        ([(7, -9999.0)], None, "what vLLM writes where it has none"),
        ([(7, 0.5)], None, "a probability above 1"),
        ([(STOP, -1.0), (7, -1.0)], None, "a token behind a stop token"),
        ([(7, -1.0)], "stop", "a stop that nobody asked for"),
        ([(7, -1.0)], "length", "an end before the budget"),
        ([(7, -1.0)] * 21, None, "more than was asked for"),
        ([(7, -1.0)], "repetition", "an end that we do not know"),
        ([(7, -1.0)], "cut", "our own word for a stream that just ends"),
    ],
)
def test_an_event_that_cannot_be_used_is_the_servers_fault(api: str, fresh: Any, ending: str | None, why: str) -> None:
    """Each would bend training without anybody seeing it."""
    answer = Answer(asked(), dialect_of(api).reader(), vocab_size=VOCAB_SIZE)

    with pytest.raises(ServerNonsense):
        answer.take(event(api, [], fresh, ending))


@pytest.mark.parametrize("api", ["vllm", "completions", "sglang"])
@pytest.mark.parametrize(
    "broken", [{}, {"choices": [{}]}, {"choices": None}, {"meta_info": None}, {"choices": [7]}, {"meta_info": 1}]
)
def test_an_event_that_lacks_what_it_should_have_is_no_crash(api: str, broken: Mapping[str, Any]) -> None:
    """It says nothing, or it is the server's fault."""
    answer = Answer(asked(), dialect_of(api).reader(), vocab_size=VOCAB_SIZE)

    with contextlib.suppress(ServerNonsense):
        assert answer.take(broken) == Piece((), ())


def test_tokens_of_other_weights_than_asked_are_refused() -> None:
    """vLLM's last event says which weights sampled what: those of a server that was started anew have another name."""
    told = event("vllm", [], [(STOP, -1.0)], "stop")
    told["choices"][0]["weight_versions"] = [{"version": "default", "start": 0, "end": 1}]

    with pytest.raises(ServerNonsense, match="default"):
        Answer(asked(label="ab-3"), TokensDialect().reader(), vocab_size=VOCAB_SIZE).take(told)
    assert Answer(asked(label="default"), TokensDialect().reader(), vocab_size=VOCAB_SIZE).take(told).ending is Ending.STOP


def test_a_continuation_that_skips_tokens_is_refused() -> None:
    """SGLang says how many there are: a stream that lost some in between is not to be believed."""
    answer = Answer(asked(), SglangDialect().reader(), vocab_size=VOCAB_SIZE)

    with pytest.raises(ServerNonsense):
        answer.take(event("sglang", [(1, -1.0)], [(2, -1.0)], None))


@pytest.mark.parametrize("api", ["vllm", "completions", "sglang"])
def test_a_request_says_everything_that_bends_the_distribution(api: str) -> None:
    """Servers take what is not said from the model's generation_config.json."""
    body = dialect_of(api).body(asked(max_tokens=17))
    drawing = body["sampling_params"] if api != "completions" else body

    assert drawing["temperature"] == 0.7
    assert drawing["top_p"] == 0.9
    assert drawing["top_k"] in (0, -1)
    assert drawing["min_p"] == drawing["presence_penalty"] == drawing["frequency_penalty"] == 0.0
    assert drawing["repetition_penalty"] == 1.0
    assert drawing["ignore_eos"] is True
    assert drawing["stop_token_ids"] == [STOP]
    assert 17 in (drawing.get("max_tokens"), drawing.get("max_new_tokens"))
    assert body["stream"] is True


@pytest.mark.parametrize("api", ["vllm", "completions"])
def test_a_request_names_its_weights_so_that_no_other_cache_serves_it(api: str) -> None:
    """And one to a fixed model, of a server that may know no such field, does not."""
    assert dialect_of(api).body(asked(label="ab-3"))["cache_salt"] == "ab-3"
    assert "cache_salt" not in dialect_of(api).body(asked())


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_continuation_has_draws_of_its_own(seed: int, position: int, later: int) -> None:
    """The same seed at the same place is the same; further on it is another one. It fits into what vLLM takes."""
    assert seed_of_attempt(seed, position) == seed_of_attempt(seed, position)
    assert seed_of_attempt(seed, position) != seed_of_attempt(seed, position + later)
    assert 0 <= seed_of_attempt(seed, position) < 2**63
