"""The age of a token along the line of steps that survives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.errors import BadInput
from seamlessflow.weights.staleness import VersionSteps


def test_a_version_counts_as_the_step_it_was_published_at() -> None:
    """Without a resume, age is simply steps done since."""
    steps = VersionSteps([(0, 0), (1, 1), (2, 2)])

    assert [steps.age(version, 2) for version in (0, 1, 2)] == [2, 1, 0]


def test_abandoned_versions_count_as_the_step_that_was_resumed_from() -> None:
    """Versions 3 and 4 came after the checkpoint of step 2; it was published again as version 5."""
    steps = VersionSteps([(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 2), (6, 3)])

    assert [steps.step_of(version) for version in range(7)] == [0, 1, 2, 2, 2, 2, 3]


def test_a_token_from_the_future_is_an_error() -> None:
    """A negative age can only mean that two lines of the run are mixed."""
    steps = VersionSteps([(0, 0), (1, 5)])

    with pytest.raises(BadInput, match="another line"):
        steps.age(1, 4)


def test_an_unknown_version_is_an_error() -> None:
    """Nobody published it, so nobody can have sampled with it."""
    with pytest.raises(BadInput, match="never published"):
        VersionSteps([(0, 0)]).age(7, 3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30), st.randoms())
def test_no_age_is_negative_whatever_is_resumed(events: list[tuple[bool, int]], shuffle: object) -> None:
    """Steps and resumes in any sequence: every version's age is at least 0, and at most the steps done."""
    current, line, published = 0, [0], [(0, 0)]
    for is_resume, back in events:
        current = max(0, current - back) if is_resume else current + 1
        published.append((len(published), current))
        line.append(current)
    shuffle.shuffle(published)  # type: ignore[attr-defined]
    steps = VersionSteps(published)

    assert all(0 <= steps.age(version, current) <= current for version, _ in published)
    assert steps.age(len(line) - 1, current) == 0
