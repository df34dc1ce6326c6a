"""Subject patterns, against a regular expression and against each other."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from seamlessflow.contracts.subjects import matches, overlaps

tokens = st.sampled_from(["a", "b", "c"])
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda head, tail: ".".join([*head, *tail]) or ">",
    st.lists(st.sampled_from(["a", "b", "*"]), max_size=3),
    st.sampled_from([[], [">"]]),
)


def as_regex(pattern: str) -> str:
    """The same pattern, said otherwise."""
    parts = [{"*": r"[^.]+", ">": r".+"}.get(token, re.escape(token)) for token in pattern.split(".")]
    return r"\.".join(parts)


@given(patterns, subjects)
def test_a_pattern_matches_what_its_regular_expression_matches(pattern, subject):
    """One token for a star, one or more for a last arrow."""
    assert matches(pattern, subject) == bool(re.fullmatch(as_regex(pattern), subject))


@given(patterns, patterns, subjects)
@example("a.>", "a", "a")
def test_patterns_overlap_when_some_subject_falls_under_both(one, other, subject):
    """And it does not matter which is named first."""
    assert overlaps(one, other) == overlaps(other, one)
    if matches(one, subject) and matches(other, subject):
        assert overlaps(one, other)


@given(patterns, patterns)
def test_overlapping_patterns_have_a_subject_in_common(one, other):
    """Overlap is not claimed without a witness; short subjects over the alphabet of the patterns suffice."""
    from itertools import product

    candidates = (".".join(each) for length in range(1, 5) for each in product("abc", repeat=length))
    witness = any(matches(one, each) and matches(other, each) for each in candidates)
    assert overlaps(one, other) == witness
