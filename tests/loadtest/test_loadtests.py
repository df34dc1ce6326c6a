"""Each benchmark runs, as small as can be, and writes the JSON that tools are promised (loadtest/report.py)."""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path

import pytest

from loadtest.report import Figure, publish

ROOT = Path(__file__).parents[2]
PUBLISHES = re.compile(r"^from loadtest\.report import .*\bpublish\b", re.MULTILINE)
BENCHMARKS = sorted(path.stem for path in (ROOT / "loadtest").glob("*.py") if PUBLISHES.search(path.read_text()))
"""The other modules there are parts of these."""
FIGURE_KEYS = {"value", "unit", "goal", "met", "better", "reference", "reference_value", "runs"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_and_writes_what_is_promised(name: str, tmp_path: Path) -> None:
    """Every figure has a positive median, a reference of the same run, and says which way is better."""
    if name != "bus":
        pytest.importorskip("torch")
    importlib.import_module(f"loadtest.{name}").main(["--quick", "--results", str(tmp_path)])
    document = json.loads((tmp_path / f"{name}.json").read_text())

    assert set(document) == {"figures", "machine", "versions"}
    assert document["figures"]
    for key, figure in document["figures"].items():
        assert set(figure) == FIGURE_KEYS
        assert figure["better"] in ("lower", "higher")
        assert figure["reference"]
        assert figure["goal"] is None or figure["goal"] > 0
        assert (figure["met"] is None) == (figure["goal"] is None)
        for number in (figure["value"], figure["reference_value"], *figure["runs"]):
            assert math.isfinite(number) and (number > 0 or key.startswith("added_"))  # those are differences
    assert document["machine"]["cores"] >= 1
    assert len(document["machine"]["load_average"]) == 3
    assert "seamlessflow" in document["versions"]


def test_a_value_is_the_median_of_its_runs_and_the_table_says_how_it_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So one disturbed run does not decide; a goal is shown with its direction."""
    figure = Figure("us", "lower", [30.0, 10.0, 500.0], "floor", [10.0, 20.0, 15.0], goal=40.0)
    written = publish("some", {"hop": figure}, tmp_path / "new")
    shown = capsys.readouterr().out

    assert json.loads(written.read_text())["figures"]["hop"]["value"] == 30.0
    assert figure.ratio == 2.0
    assert "≤ 40" in shown and "2.00" in shown


def test_a_goal_that_is_missed_is_said_plainly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the figure and what was asked; in the JSON, too. One that is met is, exactly at its goal, too."""
    figures = {
        "hop": Figure("us", "lower", [50.0], "floor", [10.0], goal=40.0),
        "busy": Figure("", "higher", [0.97], "all", [1.0], goal=0.97),
        "lost": Figure("tokens", "lower", [0.0], "cells", [1.0], goal=0.0),
        "rate": Figure("/s", "higher", [3.0], "floor", [1.0]),
    }
    written = publish("some", figures, tmp_path)
    shown = capsys.readouterr().out
    verdicts = {key: figure["met"] for key, figure in json.loads(written.read_text())["figures"].items()}

    assert verdicts == {"hop": False, "busy": True, "lost": True, "rate": None}
    assert "goal missed: hop is 50 us, asked was ≤ 40" in shown
    assert shown.count("goal missed:") == 1
