"""Bytes that were ever written can always be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.codec import decode
from seamlessflow.contracts.routes import ROUTES
from seamlessflow.contracts.subjects import events_on, subject_of
from tests.contracts.examples import EXAMPLES
from tests.contracts.golden import FOLDER, golden_path, meaning_of

GOLDEN = sorted(FOLDER.glob("v*/*.msgpack"))


def holds(now: Any, then: Any) -> bool:
    """Whether everything that was said then is still said; what was added since is not looked at."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and holds(now[key], value) for key, value in then.items())
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(holds, now, then))
    return type(now) is type(then) and now == then


def test_every_event_has_an_example():
    """A new event comes with an example, and so with golden bytes."""
    assert {type(event) for event in EXAMPLES} == {route.event for route in ROUTES}


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_every_event_has_golden_bytes(event):
    """`python -m tests.contracts.golden` writes missing ones, and only those; commit them."""
    assert golden_path(event).is_file()


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_example_sets_every_field(event):
    """Golden bytes protect only the fields that they hold."""
    assert event.model_fields_set == set(type(event).model_fields)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_bytes_decode_to_what_they_meant(path: Path):
    """Each golden file is read as the same event with the same values, whatever was added to it since."""
    then = json.loads(path.with_suffix(".json").read_text())
    now = decode(f"sf.{then['run']}.any", path.read_bytes())

    assert type(now).__name__ == path.stem
    assert holds(meaning_of(now), then)


def test_golden_comparison_notices_a_changed_value_and_type():
    """The comparison itself refuses what it must refuse."""
    assert holds({"a": 1, "new": 2}, {"a": 1})
    assert not holds({"a": 2}, {"a": 1})
    assert not holds({"a": 1.0}, {"a": 1})
    assert not holds({"a": [1]}, {"a": [1, 2]})
    assert not holds({}, {"a": 1})


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_example_survives_its_own_subject(event):
    """The subject made from an event is one on which that event is expected."""
    assert type(event) in events_on(subject_of(event))
