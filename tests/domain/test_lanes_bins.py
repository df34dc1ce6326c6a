"""Figures over time in bounded memory: nothing is lost but where in a bin it was."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.timeline.binning import Level, Sums

moments = st.integers(-(10**6), 10**6).map(lambda tick: tick / 64)
spans = st.tuples(moments, moments).map(sorted)


@given(st.lists(spans, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_sums_are_kept_in_few_bins_whatever_the_order(given_spans, random):
    """However long the time is; the bins' sums are exact."""
    one, other = Sums(max_bins=8), Sums(max_bins=8)
    for since, until in given_spans:
        one.add(since, until, 2.0)
    for since, until in random.sample(given_spans, len(given_spans)):
        other.add(since, until, 2.0)
    series = one.series()

    assert len(series.values) <= 8
    assert sum(series.values) * series.width == 2 * sum(until - since for since, until in given_spans)
    assert one.series() == other.series()


@given(spans, spans)
def test_a_bin_holds_what_falls_into_it(added, asked):
    """Bins within an interval follow one another, and hold the overlap of what was added with them."""
    sums = Sums(max_bins=16)
    sums.add(*added)
    bins = sums.within(*asked)

    assert bins[0][0] <= asked[0] and bins[-1][1] >= asked[1]
    assert all(former[1] == later[0] for former, later in pairwise(bins))
    for low, high, total in bins:
        assert total == max(0.0, min(high, added[1]) - max(low, added[0]))


@given(st.lists(st.tuples(moments, st.integers(-3, 3)), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_the_mean_of_a_level_is_exact(changes, random):
    """The area under the bins is the area under the level, up to any moment and in any order."""
    one, other, until = Level(max_bins=8), Level(max_bins=8), max(time for time, _ in changes) + 3
    for time, by in changes:
        one.change(time, by)
    for time, by in random.sample(changes, len(changes)):
        other.change(time, by)
    series = one.series(until)
    ends = [min(until, series.start + (place + 1) * series.width) for place in range(len(series.values))]
    starts = [series.start + place * series.width for place in range(len(series.values))]
    area = sum(value * (end - start) for value, start, end in zip(series.values, starts, ends, strict=True))

    assert area == pytest.approx(sum(by * (until - time) for time, by in changes), abs=1e-3)
    assert series == other.series(until)


def test_a_level_goes_on_until_it_changes():
    """Two come at 1, one goes at 2."""
    level = Level()
    level.change(1.0, 2)
    level.change(2.0, -1)

    assert level.series(3.0).values == [2.0] * 32 + [1.0] * 32


def test_a_million_seconds_fit():
    """Bins double their width until they do."""
    sums = Sums(max_bins=1024)
    sums.add(0.0, 1e6)

    assert len(sums) <= 1024
    assert sums.width == 1024
