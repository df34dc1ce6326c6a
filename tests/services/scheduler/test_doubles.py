"""Two processes under one name: seen by their instances, which alternate, and never mistaken for a restart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_scheduler.fleet_monitor import REPORTED_SECONDS, DuplicateProcesses

NAME = ("n1", "rollout-worker")


def seen(*instances: str, every_seconds: float = 0.5) -> tuple[DuplicateProcesses, dict, float]:
    """What is found after looks at a name, each of which finds an instance."""
    doubles, found, now = DuplicateProcesses(), {}, 100.0
    for instance in instances:
        found, now = doubles.observe({NAME: instance}, now), now + every_seconds
    return doubles, found, now


def test_instances_that_alternate_are_two_processes():
    """Both are named."""
    assert seen("a", "b", "a")[1] == {NAME: ("a", "b")}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_restarts_are_no_two_processes(looks):
    """However often: each instance is seen for a while, and never again."""
    assert seen(*(f"i{number}" for number, count in enumerate(looks) for _ in range(count)))[1] == {}


def test_when_one_of_the_two_is_ended_nothing_is_said_after_a_while():
    """It is a state of now."""
    doubles, found, now = seen("a", "b", "a", "b", "a")
    assert found
    for _ in range(int(REPORTED_SECONDS) + 1):
        now += 1.0
        found = doubles.observe({NAME: "a"}, now)

    assert found == {}


def test_a_name_that_is_used_again_much_later_is_no_conflict():
    """Where process ids and host names come again, as in containers."""
    doubles, _, now = seen("a", "b")
    assert doubles.observe({NAME: "a"}, now + 600.0) == {}
