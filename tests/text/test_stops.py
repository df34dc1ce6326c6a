"""Which stop text came first: the same, whether a text is read character by character or all at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.tokenization.stop_strings import StopFound, first_stop, num_held

texts = st.text(alphabet="abc", max_size=20)
stop_lists = st.lists(st.text(alphabet="abc", max_size=4), max_size=4)


@given(texts, stop_lists)
def test_the_stop_is_the_one_that_reading_on_would_meet_first(text: str, stops: list[str]):
    """Nothing before its last character completes one, and what it says stands there."""
    found = first_stop(text, stops)
    ends = [n for n in range(1, len(text) + 1) if any(stop and text[:n].endswith(stop) for stop in stops)]

    assert (found.end if found else None) == (ends[0] if ends else None)
    if found is not None:
        assert text[found.start : found.end] == found.text and found.text in stops
        assert first_stop(text[: found.end], stops) == found


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one\n\nUser: two", ["User", "\n\nUser"], StopFound(3, "\n\nUser")),
        ("xabcx", ["abc", "b"], StopFound(2, "b")),
        ("aaa", ["", "aa"], StopFound(0, "aa")),
        ("nothing", ["some"], None),
        ("anything", [], None),
    ],
    ids=["longest of one end", "complete first, not begun first", "empty ones stop nothing", "absent", "none asked"],
)
def test_the_rule_where_stops_meet(text: str, stops: list[str], expected: StopFound | None):
    """The table of cases."""
    assert first_stop(text, stops) == expected


@given(texts, texts, stop_lists)
def test_what_is_not_held_back_is_never_part_of_a_stop(shown: str, more: str, stops: list[str]):
    """However the text goes on, a stop text that comes later begins in what is held, and no more is held than could be one."""
    if first_stop(shown, stops) is not None:
        return
    held = num_held(shown, stops)
    later = first_stop(shown + more, stops)

    assert later is None or later.start >= len(shown) - held
    assert held == 0 or any(stop.startswith(shown[len(shown) - held :]) and len(stop) > held for stop in stops)
