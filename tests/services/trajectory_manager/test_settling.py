"""The collector does not walk what has been there for long."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from services.trajectory_manager.settling import Settling


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Other tests keep their collector."""
    yield
    gc.unfreeze()


def test_what_is_there_is_walked_no_more():
    """After the first event, and then after every so many."""
    settling = Settling(every_events=3)
    settling.tick()
    first = gc.get_freeze_count()
    later = [[number] for number in range(1000)]
    settling.tick()
    settling.tick()
    assert gc.get_freeze_count() <= first
    settling.tick()
    assert gc.get_freeze_count() >= first + len(later)


def test_what_nobody_refers_to_goes_all_the_same():
    """Only cycles need the collector."""
    settling, kept = Settling(every_events=1), [[number] for number in range(1000)]
    settling.tick()
    before = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= before - 1000
