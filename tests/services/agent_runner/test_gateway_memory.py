"""What a session remembers for clients that point at earlier answers, and what it costs.

whole input each time        n turns cost n messages, not n² digests
two goings-on from one turn  share what is before it
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import CallAnswered, CallError
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.dialects.base import ParsedRequest
from seamlessflow_agent_runner.gateway.previous_responses import PreviousResponses, reference
from seamlessflow_agent_runner.gateway.sessions import digest

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(name: str) -> Message:
    return {"role": "assistant", "content": f"answer to {name}"}


def note(memory: PreviousResponses, name: str, asked: ParsedRequest) -> None:
    memory.note(name, asked, tuple(digest(message) for message in asked.messages))
    memory.answered(CallAnswered(run="r", episode="e", call=name, message=said(name)))


def asks(*messages: Message, **more: Any) -> ParsedRequest:
    return ParsedRequest("m", messages, is_remembered=True, **more)


def kept_bytes(turns: int) -> int:
    """Of a conversation whose client sends the whole input with each of its turns."""
    memory, history = PreviousResponses(), [user("hello")]
    tracemalloc.start()
    for number in range(turns):
        name = f"c{number}"
        request = json.loads(json.dumps(history))  # as each body is parsed anew
        note(memory, name, asks(*request))
        history += [said(name), user(f"more {number}")]
    del request
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


def test_a_conversation_costs_memory_for_what_is_new_in_each_turn() -> None:
    """As many turns again cost as much again."""
    assert kept_bytes(96) < 2.6 * kept_bytes(48)
    assert kept_bytes(48) < 48 * 8192


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=12), st.data())
def test_an_answer_is_gone_on_from_with_all_that_was_before_it(parents: list[int], data: st.DataObject) -> None:
    """Any tree of goings-on, told by pointers: each turn's history is its parent's, the parent's answer, and its own words."""
    memory, histories = PreviousResponses(), []
    for number, wanted in enumerate(parents):
        parent = min(wanted, number - 1)
        own, before = user(data.draw(st.sampled_from("ab"))), [] if parent < 0 else [*histories[parent], said(f"c{parent}")]
        pointer = None if parent < 0 else f"c{parent}"
        instructions = {"role": "system", "content": f"{number}"}

        completed = memory.completed(asks(instructions, own, goes_on_from=pointer, num_instructions=1))

        told = [{key: value for key, value in message.items() if key != "turn"} for message in completed.messages]
        assert told == [instructions, *before, own]
        histories.append([*before, own])
        note(memory, f"c{number}", completed)


def test_a_reference_is_the_answer_in_full() -> None:
    """Where an item was left out."""
    memory = PreviousResponses()
    note(memory, "c1", asks(user("hello")))

    completed = memory.completed(asks(user("hello"), reference("c1"), user("more")))

    assert completed.messages == (user("hello"), {**said("c1"), "turn": "c1"}, user("more"))


@pytest.mark.parametrize("kind", ["unknown", "failed", "not answered yet", "not to be stored"])
def test_what_is_not_there_is_said(kind: str) -> None:
    """With the code that makes clients send the whole input."""
    memory = PreviousResponses()
    if kind == "failed":
        memory.note("c1", asks(user("hello")), ("d",))
        error = CallError(status=400, code="x", message="no")
        memory.answered(CallAnswered(run="r", episode="e", call="c1", error=error))
    elif kind == "not answered yet":
        memory.note("c1", asks(user("hello")), ("d",))
    elif kind == "not to be stored":
        note(memory, "c1", ParsedRequest("m", (user("hello"),)))

    with pytest.raises(ApiError) as caught:
        memory.completed(asks(user("more"), goes_on_from="c1"))

    assert caught.value.code == "previous_response_not_found"
