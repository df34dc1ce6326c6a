"""The benchmark of large fleets, as small as can be: it runs, writes what is promised, and compares like with like."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from loadtest.fleet.baselines import modes
from loadtest.fleet.cost import cost_of
from loadtest.fleet.fleet import compare, main
from loadtest.fleet.fleet_decision import measured
from loadtest.fleet.fleet_grid import GridCell, compared, words_of_cell
from loadtest.fleet.simulator import Scene, simulate
from loadtest.fleet.workloads import REASONING, Lengths, with_ratio

SHORT = replace(REASONING, answers=Lengths(300, 0.5, 2_000), group_size=2)


def test_the_benchmark_writes_what_is_promised(tmp_path: Path) -> None:
    """Without the timed run, which the benchmark of that plays."""
    main(["--quick", "--no-timed", "--results", str(tmp_path)])
    figures = json.loads((tmp_path / "fleet.json").read_text())["figures"]

    assert set(figures) == {"decision_p99_ms_1000_nodes", "decision_memory_mb_1000_nodes", "busy_share_1000_nodes"}
    assert all(figure["value"] > 0 and figure["goal"] > 0 for figure in figures.values())


def test_decisions_are_timed_while_leases_change() -> None:
    """A gang forms and parts, and episodes are in flight: not the same quiet look again and again."""
    found = measured(nodes=6, episodes=600, steps=2, looks=5)

    assert found.episodes >= 500
    assert found.num_changes > 6
    assert len(found.milliseconds) >= 10
    assert 0 < len(found.changing) < len(found.milliseconds)
    assert found.megabytes > found.megabytes_before


def test_what_an_event_leads_to_is_part_of_its_decision() -> None:
    """A step taken opens the episodes of a whole step: its decision is longer than those that open none."""
    found = measured(nodes=4, episodes=4_000, steps=2, looks=5)

    assert found.longest == max(found.changing) > 3 * median(found.milliseconds)


def test_the_error_is_a_share_of_the_timed_throughput() -> None:
    """A timed episode may stand for several."""
    virtual, timed = SimpleNamespace(trained_throughput=52.0), SimpleNamespace(trained_throughput=200.0)

    assert compare(cast(Any, virtual), cast(Any, timed), 4) == pytest.approx(0.04)


def test_the_grid_shows_each_cell_and_ours_over_theirs() -> None:
    """The mean over ratios, and each of them."""
    cost = with_ratio(cost_of(slots=8), SHORT, 0.5, 8)
    cells = [
        GridCell(2, "reasoning", 0.5, name, None, simulate(Scene(2, SHORT, cost, mode, 8, steps=3, warmup_steps=1)), False)
        for name, mode in modes(2, 1).items()
        if name in ("sync colocated", "multiplexed", "auto")
    ]

    assert "1:2" in words_of_cell(cells[0]) and "sync colocated" in words_of_cell(cells[0])
    assert [line.split(":")[0].strip() for line in compared(cells)] == [
        "multiplexed over sync colocated",
        "auto over sync colocated",
    ]
