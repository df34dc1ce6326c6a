"""What the gateway lets through, the trajectory-manager turns into a prompt or refuses in words: it is no failure there.

Damaged requests of every dialect, by real templates; each that is accepted is asked twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from seamlessflow.codec import decode, encode
from seamlessflow.contracts import CallAnswered, CallRequested, GenerationRequested, Sampling
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.dialects.base import ApiDialect, Frame, ParsedRequest
from seamlessflow_agent_runner.gateway.error_middleware import DIALECTS
from seamlessflow_agent_runner.gateway.previous_responses import PreviousResponses
from seamlessflow_agent_runner.gateway.sessions import digest
from seamlessflow_trajectory_manager.trajectory.episode import Episode
from tests.domain.trajectory_builders import CHATML, SMOLLM2, renderer
from tests.services.agent_runner.conftest import opened
from tests.services.agent_runner.fuzzed import VALID, damaged
from tests.services.agent_runner.streams import streamed


def requested(asked: ParsedRequest, call: str) -> CallRequested:
    """As the gateway says it, and as it comes over the bus."""
    contents: dict[str, dict[str, Any]] = {digest(message): message for message in asked.messages}
    messages = tuple(digest(message) for message in asked.messages)
    tools = None
    if asked.tools is not None:
        offer = {"tools": list(asked.tools)}
        tools = digest(offer)
        contents[tools] = offer
    task = opened()
    known = {"run": task.run, "episode": task.episode, "call": call, "shard": 0, "bucket": 0, "origin": task.origin, "tag": "x"}
    asks = {"messages": messages, "unseen": contents, "tools": tools, "tool_choice": asked.tool_choice, "stop": asked.stop}
    said = CallRequested(**known, **asks, sampling=Sampling(max_tokens=8), stream=asked.stream, logprobs=asked.logprobs, seed=1)
    back = decode("inbox", encode(said))
    assert isinstance(back, CallRequested)
    return back


def asked_of(dialect: ApiDialect, body: Any) -> ParsedRequest | None:
    """None: refused."""
    try:
        return PreviousResponses().completed(dialect.parse(json.dumps(body).encode()))
    except ApiError as refused:
        assert refused.status == 400
        return None


def asked_all(asked: ParsedRequest, template: str) -> Sequence[Any]:
    episode = Episode(renderer(template, 0), 100_000)
    return [each for call in ("c1", "c2") for each in episode.ask(requested(asked, call))]


@pytest.mark.parametrize("template", [CHATML, SMOLLM2], ids=["chatml", "smollm2"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.path for dialect in DIALECTS])
def test_what_is_accepted_becomes_a_prompt_or_a_refusal(dialect: ApiDialect, template: str) -> None:
    """Each of both calls leads to one of them."""

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(VALID[dialect.path]))
    def holds(body: Any) -> None:
        asked = asked_of(dialect, body)
        event("refused" if asked is None else "accepted")
        if asked is None:
            return
        consequences = asked_all(asked, template)
        assert [type(each) for each in consequences] in ([GenerationRequested] * 2, [CallAnswered] * 2)
        for each in consequences:
            assert isinstance(each, GenerationRequested) or (each.error is not None and each.error.status == 400)

    holds()


def test_the_valid_requests_are_accepted() -> None:
    """Or nothing above would be shown."""
    for dialect in DIALECTS:
        asked = asked_of(dialect, VALID[dialect.path])
        assert asked is not None
        assert [type(each) for each in asked_all(asked, CHATML)] == [GenerationRequested] * 2


@given(st.sampled_from(DIALECTS), st.data())
def test_what_is_accepted_can_be_answered(dialect: ApiDialect, data: st.DataObject) -> None:
    """Whole and as a stream, whatever of the request is shown again."""
    asked = asked_of(dialect, data.draw(damaged(VALID[dialect.path])))
    if asked is None:
        return
    function = {"name": "calc", "arguments": "{}"}
    calls = [{"id": f"call_c1_{number}", "type": "function", "function": function} for number in range(2)]
    message = {"role": "assistant", "content": "7", "reasoning_content": "hm", "tool_calls": calls}
    answer = CallAnswered(run="r", episode="e", call="c1", message=message, finish_reason="tool_calls")
    frame = Frame("c1", 1, asked)
    assert json.dumps(dialect.whole(frame, answer))
    assert streamed(dialect, frame, answer)
