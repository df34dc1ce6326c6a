"""The alarm on the logprob gap: several steps in a row beyond what rounding explains, and words for whose tokens they were."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import RunStarted, StepTaken
from seamlessflow.logprob_gap import GAP, GAP_ALARM, GAP_LIMITS, GapWatch, gap_limit, gap_warning
from seamlessflow.reports.ledger import LedgerFold
from seamlessflow.reports.run_view import RunView
from seamlessflow.reports.summary import summarize

CONFIG = parse_run_config({"model": {"name": "m"}, "agents": [{"env": "a", "command": ["true"]}], "algorithm": {"steps": 9}})
GAPS = st.none() | st.floats(min_value=0, max_value=1) | st.just(math.nan)


def after(watch: GapWatch, *gaps: float | None) -> GapWatch:
    for gap in gaps:
        watch = watch.after(gap)
    return watch


@given(st.lists(GAPS), st.floats(min_value=0.01, max_value=0.9), st.integers(1, 5))
def test_an_alarm_is_the_last_so_many_measured_steps_beyond_the_limit(gaps, limit, num_steps):
    """Whatever came before them; steps that measured nothing are as if they were not there."""
    watch = after(GapWatch(limit, num_steps), *gaps)

    measured = [gap for gap in gaps if gap is not None]
    in_a_row = 0
    for gap in reversed(measured):
        if gap <= limit:
            break
        in_a_row += 1
    assert watch.num_beyond == in_a_row
    assert (watch.num_alarms > 0) == (in_a_row >= num_steps)
    assert watch.metrics()[GAP_ALARM] == max(0, in_a_row - num_steps + 1)


def test_one_bad_step_is_no_alarm_and_a_good_one_ends_it():
    """Three in a row are."""
    watch = after(GapWatch(0.1), 0.5, 0.5)
    assert (watch.is_beyond, watch.num_alarms) == (True, 0)
    assert after(watch, 0.5).num_alarms == 1
    assert after(watch, 0.5, None, 0.5).num_alarms == 2
    assert after(watch, 0.1, 0.5).num_alarms == 0


def test_a_gap_that_is_no_number_is_beyond_every_limit():
    """A broken engine must not look like a perfect one."""
    assert after(GapWatch(1e9, 1), math.nan).num_alarms == 1


def test_an_unknown_precision_is_judged_as_the_coarse_one():
    """float32 is judged more strictly than bfloat16."""
    assert gap_limit("float16") == gap_limit("bfloat16") > gap_limit("float32") == GAP_LIMITS["float32"]


def test_a_warning_names_who_is_off_furthest_first_and_nobody_else():
    """With engine, version, the figures, and where to look."""
    metrics = {GAP: 0.4, **after(GapWatch(0.1, 1), 0.4).metrics()}
    nodes = {"logprob_gap/n1": 0.01, "logprob_gap/n2": 0.3, "logprob_gap/n3": 0.9}

    said = gap_warning(7, 6, metrics | nodes, "vllm")

    assert said is not None and "0.4 > 0.1 at step 7" in said
    assert "(engine vllm, version 6: n3 0.9, n2 0.3)" in said and "n1" not in said
    assert "seamlessflow doctor --engine vllm" in said
    assert "no node in particular" in (gap_warning(7, 6, metrics) or "")


def test_a_step_within_the_limit_or_of_an_older_trainer_says_nothing():
    """Its metrics may not even have the limit."""
    assert gap_warning(1, 0, {GAP: 0.4}) is None
    assert gap_warning(1, 0, {GAP: 0.05, **after(GapWatch(0.1, 1), 0.05).metrics()}) is None


def test_a_run_shows_the_last_steps_warning_and_counts_all_alarms():
    """The version named is the one that sampled: the one before the step's own."""
    view = RunView()
    view.apply(RunStarted(run="r", document={"model": {"engine": "transformers"}}), 0.0)
    watch = GapWatch(0.1, 2)
    for step, gap in enumerate((0.5, 0.5, 0.5, 0.01), start=1):
        watch = watch.after(gap)
        metrics = {GAP: gap, **watch.metrics()}
        view.apply(StepTaken(run="r", step=step, line=1, weights_version=step, groups=(), metrics=metrics), float(step))
        if step == 3:
            assert view.gap_warning is not None and "engine transformers, version 2" in view.gap_warning

            told = summarize("r", CONFIG, view, LedgerFold().ledger(), counts={}, model_dir="")["logprob_gap"]
            assert told == {"alarms": 2, "largest": 0.5, "warning": view.gap_warning}

    assert view.gap_warning is None
    assert view.num_gap_alarms == 2


def test_a_run_that_measured_no_gap_says_so_and_not_zero():
    """Its tokens may all have been of older weights."""
    told = summarize("r", CONFIG, RunView(), LedgerFold().ledger(), counts={}, model_dir="")["logprob_gap"]

    assert told == {"alarms": 0, "largest": None, "warning": ""}
