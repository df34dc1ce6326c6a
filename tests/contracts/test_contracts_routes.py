"""The wiring table: unambiguous, complete, and the only place with subjects."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Service, TrainerClaimed
from seamlessflow.contracts.routes import BY_EVENT, CONTROL_STREAM, QUEUES, ROUTES
from seamlessflow.contracts.streams import consumers_of, control_streams, run_consumers, run_streams
from seamlessflow.contracts.subjects import (
    claim_of_commit,
    events_on,
    kind_of_id,
    kinds_on,
    matches,
    message_id_of,
    placeholders,
    subject_filter,
    subject_of,
    wildcards,
)
from seamlessflow.contracts.subjects import overlaps as patterns_overlap
from tests.contracts.examples import EXAMPLES
from tests.contracts.strategies import few, records

ROOT = Path(__file__).parents[2]
FAMILIES = {
    frozenset({"GenerationClaimed", "SegmentSampled", "GenerationEnded"}),
    frozenset({"GroupTrained", "GroupDropped"}),
    frozenset({"TrainerClaimed", "StepsCommitted", "RolledBack"}),
}
"""Events that share a subject on purpose: its order, or its being said once, is what they are about."""


def by_name(each):
    return getattr(each, "event", type(each)).__name__


def test_every_subject_belongs_to_one_event_or_one_family():
    """Two events share a subject only where that is the point."""
    named = defaultdict(set)
    for route in ROUTES:
        named[route.subject].add(route.event.__name__)

    assert {frozenset(names) for names in named.values() if len(names) > 1} == FAMILIES


@pytest.mark.parametrize("route", ROUTES, ids=by_name)
@few
@given(data=st.data())
def test_a_subject_leads_back_to_its_event(route, data):
    """Whatever the ids are, the subject of an event is not taken for another event's."""
    event = data.draw(records(route.event).filter(lambda event: getattr(event, "call", "") != "ended"))

    found = events_on(subject_of(event))

    assert route.event in found
    assert kinds_on(subject_of(event)) == set(found)
    assert len(found) == 1 or frozenset(kind.__name__ for kind in found) in FAMILIES


def test_message_ids_of_different_events_never_meet():
    """The literal start of an id belongs to one event: two facts never de-duplicate each other."""
    starts = [route.message_id.partition("{")[0].rstrip(".") for route in ROUTES]

    assert len(set(starts)) == len(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=by_name)
def test_templates_mention_only_fields_that_exist(route):
    """Every placeholder is a field of the event (or of its origin)."""
    for template in (route.subject, route.message_id, route.once or "", route.claimed or "", route.formerly or ""):
        for name in placeholders(template):
            kind = route.event
            for part in name.split("."):
                assert part in kind.model_fields, f"{route.event.__name__}: {name}"
                kind = kind.model_fields[part].annotation


@pytest.mark.parametrize("event", EXAMPLES, ids=by_name)
def test_the_fence_of_an_event_covers_its_own_subject(event):
    """An event said once compares a subject that it is itself published on."""
    route = next(route for route in ROUTES if route.event is type(event))
    if route.once is not None:
        filled = route.once.format(**{name: getattr(event, name) for name in type(event).model_fields})
        assert matches(filled, subject_of(event))


@pytest.mark.parametrize("event", EXAMPLES, ids=by_name)
def test_an_event_is_found_by_the_filter_made_from_its_kind(event):
    """Reading back finds what was said, by any of its fields or none."""
    assert matches(subject_filter(type(event), run=event.run), subject_of(event))
    known = {name: getattr(event, name) for name in type(event).model_fields}
    known |= {"group": event.origin.group} if hasattr(event, "origin") else {}
    assert subject_filter(type(event), **known) == subject_of(event)


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.service.value)
def test_every_filter_of_a_queue_lets_an_event_through(queue):
    """A filter that matches nothing is a typing mistake."""
    subjects = [subject_of(event) for event in EXAMPLES]
    for pattern in queue.filters:
        assert any(matches(pattern.format(run="demo-1"), subject) for subject in subjects), pattern


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.service.value)
def test_filters_of_one_queue_do_not_overlap(queue):
    """The server refuses a source whose filters overlap."""
    for index, one in enumerate(queue.filters):
        for other in queue.filters[index + 1 :]:
            assert not patterns_overlap(one.format(run="r"), other.format(run="r"))


@pytest.mark.parametrize("event", [each for each in EXAMPLES if BY_EVENT[type(each)].stream != CONTROL_STREAM], ids=by_name)
def test_who_acts_on_an_event_of_a_run_has_it_in_a_consumer(event):
    """The table says who hears an event; exactly those services' consumers deliver it, once each."""
    consumers = run_consumers("demo-1", envs=["solver"], shards=2, tags=["rollout"], buckets=1)
    streams = {spec.name: spec for spec in run_streams("demo-1")}
    for queue in QUEUES:
        name = f"Q{queue.role}_demo-1"
        if not any(matches(pattern, subject_of(event)) for pattern in streams[name].source_filters):
            assert queue.service not in consumers_of(type(event))
            continue
        taking = [c for c in consumers if c.stream == name and any(matches(f, subject_of(event)) for f in c.filters)]
        assert queue.service in consumers_of(type(event))
        assert len(taking) == 1, f"{type(event).__name__} is delivered by {len(taking)} consumers of {name}"


@pytest.mark.parametrize("event", EXAMPLES, ids=by_name)
def test_exactly_one_stream_stores_an_event(event):
    """The control stream takes control events, the journal all others; a message without a stream would be lost."""
    streams = [*control_streams(), *run_streams("demo-1")]
    storing = [s.name for s in streams if any(matches(pattern, subject_of(event)) for pattern in s.subjects)]

    assert storing == [BY_EVENT[type(event)].stream.format(run=event.run)]


def test_a_fact_said_again_has_the_same_id():
    """Ids depend on what is said, not on who says it or when."""
    for event in EXAMPLES:
        assert message_id_of(event) == message_id_of(event.model_copy())
        assert message_id_of(event).startswith(f"{event.run}.")


def test_wildcards_replace_what_is_not_known():
    """Used for permissions and for reading back."""
    assert wildcards("a.{run}.b.{origin.group}", run="r") == "a.r.b.*"


def test_everybody_says_something_and_every_service_acts_on_something():
    """A service without a part in the table is not wired."""
    assert {service for route in ROUTES for service in route.published_by} == set(Service)
    assert {service for route in ROUTES for service in consumers_of(route.event)} == set(Service) - {Service.USER}


def literal_subjects(source: str) -> list[int]:
    """Lines with a text constant that starts like one of our subjects; docstrings are prose and do not count."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(("sf.", "sfhint."))
        and id(node) not in prose
    ]


def test_no_subject_is_written_anywhere_but_in_the_table():
    """Subjects are made from the table, so that changing it changes everything."""
    sources = [*ROOT.glob("shared/**/*.py"), *ROOT.glob("services/**/*.py")]
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources
        if path != ROOT / "shared/seamlessflow/contracts/routes.py"
        for line in literal_subjects(path.read_text())
    }

    assert not found
    assert literal_subjects('f"sf.{run}.x"') == [1]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.claimed is not None], ids=by_name)
def test_what_needs_a_claim_is_published_by_one(route):
    """No service publishes it as it publishes everything else, without a comparison."""
    without_claim = re.compile(rf"\.publish\(\s*(?:\w+\.)?{route.event.__name__}\(")
    modules = [path for folder in ("services", "shared") for path in (ROOT / folder).rglob("*.py")]

    assert not [str(path) for path in modules if without_claim.search(path.read_text())]


@pytest.mark.parametrize("event", EXAMPLES, ids=by_name)
def test_the_id_of_a_commit_tells_whose_it_is(event):
    """On the subject of commits an id ends in line and nonce; every id tells its kind."""
    assert kind_of_id(message_id_of(event)) is type(event)
    if BY_EVENT[type(event)].subject == BY_EVENT[TrainerClaimed].subject:
        assert claim_of_commit(message_id_of(event)) == (event.line, event.nonce)
