"""Where a learner stands, and which step may be kept of it when its trainer leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_trainer.steps.train_step import StepState, step_to_commit


def standing(step: int, *, is_between: bool = False) -> StepState:
    made = StepState(step)
    if is_between:
        made.begin()
    return made


@given(st.lists(st.sampled_from(["taken", "undone", "begun only"])))
def test_it_is_exact_between_steps_only_and_counts_those_taken(fates: list[str]) -> None:
    """Whatever became of the steps before: a step given up leaves it where it was, one without an end leaves it nowhere."""
    made = StepState(3)
    for fate in fates:
        made.begin()
        assert made.exact is None
        if fate == "taken":
            made.taken()
        if fate == "undone":
            made.undone()

    assert made.step == 3 + fates.count("taken")
    assert made.exact == (None if fates[-1:] == ["begun only"] else made.step)


def test_a_step_that_never_began_was_not_taken() -> None:
    """Our own mistake would put a wrong number on a checkpoint."""
    with pytest.raises(AssertionError):
        StepState(1).taken()


@pytest.mark.parametrize(
    ("is_between", "committed_step", "kept"),
    [
        (False, 3, 5),
        (False, 5, None),  # nothing new
        (True, 3, None),  # inexact
    ],
)
def test_a_step_is_kept_when_it_is_exact_and_new(is_between: bool, committed_step: int, kept: int | None) -> None:
    """At step 5."""
    where = standing(5, is_between=is_between)

    assert step_to_commit(where, committed_step=committed_step) == kept
