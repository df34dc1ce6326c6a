"""Events survive the wire; strict when built, lenient when read."""

from __future__ import annotations

import json
from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from seamlessflow.codec import decode, encode, pack_record, to_message, unpack_record
from seamlessflow.contracts import (
    AnswerDelta,
    EpisodeEnded,
    Lease,
    NodeStatus,
    RunRequested,
    SamplesReady,
    TaskSubmitted,
    WeightsHead,
)
from seamlessflow.contracts.routes import ROUTES
from seamlessflow.contracts.subjects import subject_of
from seamlessflow.errors import MalformedMessage
from tests.contracts.examples import EXAMPLES, C, E, R
from tests.contracts.strategies import few, records

JSON = {"Content-Type": "application/json"}
EVENTS = [route.event for route in ROUTES]
TASK = next(event for event in EXAMPLES if isinstance(event, TaskSubmitted))


def by_name(kind):
    return kind.__name__


@pytest.mark.parametrize("kind", EVENTS, ids=by_name)
@few
@given(data=st.data())
def test_an_event_comes_back_from_msgpack_as_it_was(kind, data):
    """encode then decode is the identity, for every event and all values."""
    event = data.draw(records(kind))

    assert decode(subject_of(event), encode(event)) == event


@pytest.mark.parametrize("kind", EVENTS, ids=by_name)
@few
@given(data=st.data())
def test_an_event_comes_back_from_json_as_it_was(kind, data):
    """Any NATS client may write JSON: it means the same, packed arrays and raw bytes included."""
    event = data.draw(records(kind))
    payload = json.dumps({**event.model_dump(mode="json"), "event": f"{kind.__name__}/{kind.version}"}).encode()

    assert decode(subject_of(event), payload, JSON) == event


@pytest.mark.parametrize("kind", [NodeStatus, Lease, WeightsHead], ids=by_name)
@few
@given(data=st.data())
def test_a_bucket_value_comes_back_as_it_was(kind, data):
    """The same holds for key-value documents."""
    record = data.draw(records(kind))

    assert unpack_record(kind, pack_record(record)) == record


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_a_field_of_a_newer_writer_is_ignored(event):
    """Services of different ages work side by side: what we do not know, we do not read."""
    fields = {**msgpack.unpackb(encode(event)), "from_the_future": [1]}

    assert decode(subject_of(event), msgpack.packb(fields)) == event


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_unknown_field_is_refused_when_an_event_is_built(event):
    """Built by us, an unknown field is a typing mistake."""
    with pytest.raises(ValidationError, match="has no field from_the_future"):
        type(event)(**event.model_dump(), from_the_future=1)


def test_the_same_holds_inside_nested_records():
    """Strictness and leniency reach every level, also inside tuples."""
    ended = next(event for event in EXAMPLES if isinstance(event, EpisodeEnded))
    ready = next(event for event in EXAMPLES if isinstance(event, SamplesReady))
    for event, inner in ((ended, lambda fields: fields["origin"]), (ready, lambda fields: fields["samples"][0])):
        fields = event.model_dump()
        inner(fields)["from_the_future"] = 1
        with pytest.raises(ValidationError, match="has no field from_the_future"):
            type(event)(**fields)

        assert decode(subject_of(event), msgpack.packb({**fields, "event": type(event).__name__})) == event


def test_a_plain_json_task_needs_only_its_subject():
    """`nats pub sf.demo-1.task.solver.t7 '{...}'`: event and run are told by the subject; no header is needed."""
    given_fields = {"task": "t7", "env": "solver", "prompt": "1 + 2 = ?"}

    event = decode("sf.demo-1.task.solver.t7", json.dumps(given_fields).encode())

    assert event == TaskSubmitted(run="demo-1", **given_fields)


def test_a_run_requested_by_hand_takes_its_name_from_the_subject():
    """On the control stream the run is the fourth token."""
    event = decode("sf.ctl.run.mine.requested", b'{"document": {}}')

    assert event == RunRequested(run="mine", document={})


def test_a_subject_of_several_events_needs_the_field():
    """Claims, segments and ends share a subject: without ``event`` nobody can tell which one it is."""
    with pytest.raises(MalformedMessage, match="field 'event' is missing"):
        decode("sf.r.ev.segment.0.e.c", b"{}", JSON)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "expected msgpack of one event, got 0 bytes"),
        (b"\xc1", "expected msgpack"),
        (b"{nonsense", "expected JSON"),
        (b" []", "expected a map of fields, got list"),
        (msgpack.packb([1]), "expected a map of fields, got list"),
        (msgpack.packb({"event": "Nonsense/1"}), "unknown event 'Nonsense/1'"),
        (msgpack.packb({"event": "TaskSubmitted/99"}), "newer than this reader, which knows /1"),
        (msgpack.packb({"event": "TaskSubmitted/1"}), "task: Field required"),
        (msgpack.packb({"task": "a.b", "env": "e"}), "it becomes a subject token"),
        (msgpack.packb({"task": "t", "env": "e", "prompt": 3}), "prompt: Input should be a valid string"),
    ],
)
def test_bytes_that_are_no_event_are_refused_with_what_was_expected(payload, said):
    """A malformed message ends as a dead letter whose reason a person can act on."""
    with pytest.raises(MalformedMessage, match=said):
        decode("sf.r.task.e.t", payload)


@few
@given(payload=st.binary(max_size=64))
def test_no_bytes_raise_anything_but_malformed_message(payload):
    """Whatever arrives, a service only ever sees an event or MalformedMessage."""
    with suppress(MalformedMessage):
        decode("sf.r.task.e.t", payload)


def test_a_message_carries_subject_id_and_fence():
    """What is said once expects that nothing was said before."""
    started = to_message(next(event for event in EXAMPLES if type(event).__name__ == "EpisodeStarted"))

    assert started.subject == "sf.demo-1.ev.episode.t7-2-0.started"
    assert started.message_id == "demo-1.episode-started.t7-2-0.host-41"
    assert (started.expected_last_seq, started.expected_subject) == (0, started.subject)
    assert to_message(TASK).expected_last_seq is None


def test_a_hint_is_read_by_its_name_and_has_no_subject():
    """Hints go to an inbox; nothing is stored of them."""
    delta = AnswerDelta(run=R, episode=E, call=C, content_start=3, content="é")

    assert decode("_INBOX_agent-runner.x", encode(delta)) == delta
    with pytest.raises(KeyError):
        to_message(delta)
