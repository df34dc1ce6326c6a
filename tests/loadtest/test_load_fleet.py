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
from loadtest.fleet.fleet import PROMISED, TIMED, compare, error_figures, main, worst_of
from loadtest.fleet.fleet_decision import measured
from loadtest.fleet.fleet_grid import Choice, GridCell, compared, print_grid, words_of_cell
from loadtest.fleet.simulator import Scene, simulate
from loadtest.fleet.workloads import REASONING, Lengths, with_ratio

SHORT = replace(REASONING, answers=Lengths(300, 0.5, 2_000), group_size=2)


def test_the_benchmark_writes_what_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the timed run, which the benchmark of that plays."""
    main(["--quick", "--no-timed", "--results", str(tmp_path)])
    figures = json.loads((tmp_path / "fleet.json").read_text())["figures"]

    assert set(figures) == {
        "decision_p99_ms_1000_nodes",
        "decision_changing_p99_ms_1000_nodes",
        "decision_gc_pause_ms_1000_nodes",
        "decision_memory_mb_1000_nodes",
        "busy_share_1000_nodes",
        "busy_share_mean_1000_nodes",
        "handover_share_1000_nodes",
        "lost_or_repeated_tokens_1000_nodes",
    }
    lost = figures.pop("lost_or_repeated_tokens_1000_nodes")
    assert (lost["value"], lost["goal"]) == (0, 0)
    assert all(figure["value"] > 0 and figure["goal"] > 0 for figure in figures.values())
    assert set(PROMISED) - set(figures) == {"simulator_error"}
    assert "not measured: simulator_error" in capsys.readouterr().out


def test_decisions_are_timed_while_leases_change() -> None:
    """A gang forms and parts, and episodes are in flight: not the same quiet look again and again."""
    found = measured(nodes=6, episodes=600, steps=2, looks=5)

    assert found.episodes >= 500
    assert found.num_changes > 6
    assert len(found.milliseconds) >= 10
    assert 0 < len(found.changing) < len(found.milliseconds)
    assert found.megabytes > found.megabytes_before


def test_what_an_event_leads_to_is_part_of_its_decision_a_slice_at_a_time() -> None:
    """A step taken opens the episodes of a whole step: its decision is longer than those that open none, by one slice."""
    found = measured(nodes=4, episodes=4_000, steps=2, looks=5)

    assert max(found.answers) > 5 * found.longest
    assert median(found.changing) > median(found.milliseconds)
    assert found.changing_p99 == max(found.changing) == found.longest


def test_what_is_there_is_walked_no_more_by_the_collector() -> None:
    """Its longest pause is a fraction of what it is without."""
    settled = measured(nodes=4, episodes=20_000, steps=1, looks=5)
    walked = measured(nodes=4, episodes=20_000, steps=1, looks=5, settles=False)

    assert settled.longest_pause < walked.longest_pause / 2


def test_the_error_is_a_share_of_the_timed_throughput() -> None:
    """A timed episode may stand for several."""
    virtual, timed = SimpleNamespace(throughput=52.0), SimpleNamespace(throughput=200.0)

    assert compare(cast(Any, virtual), cast(Any, timed), 4) == pytest.approx(0.04)


def test_the_simulator_is_as_wrong_as_it_is_for_the_worst_mode() -> None:
    """Each mode that is played has a figure of its own, and the key is the worst of them."""
    figures = {}
    for name, simulated in (("auto", 108.0), ("multiplexed", 97.0), ("disaggregated", 100.0)):
        virtual = SimpleNamespace(throughput=simulated / 16, busy_share=0.99)
        timed = SimpleNamespace(throughput=100.0, busy=0.98)
        figures |= error_figures(name, TIMED[name], cast(Any, virtual), cast(Any, timed))
    values = {key: round(figure.value, 6) for key, figure in figures.items()}

    assert values == {
        "simulator_error_auto": 0.08,
        "simulator_error_multiplexed": 0.03,
        "simulator_error_disaggregated": 1e-6,
    }
    worst = worst_of(figures)
    assert (round(worst.value, 6), worst.goal, worst.met) == (0.08, 0.05, False)
    assert "auto" in worst.reference


def test_each_way_that_is_played_timed_is_simulated_as_such() -> None:
    """Auto, multiplexed, and a fixed split."""
    assert {name: cell.policy for name, cell in TIMED.items()} == {name: name for name in TIMED}
    assert set(TIMED) == {"auto", "multiplexed", "disaggregated"}


def test_a_grid_has_the_cells_that_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And keeps each of them."""
    print_grid([2], 3, tmp_path, Choice((False,), (False,), (1 / 4,), ("auto", "sync colocated")))
    kept = json.loads((tmp_path / "fleet_grid.json").read_text())
    said = capsys.readouterr().out

    assert [(cell["nodes"], cell["mode"], cell["ratio"]) for cell in kept] == [(2, "sync colocated", 0.25), (2, "auto", 0.25)]
    assert "auto over sync colocated" in said and "idle lending" not in said


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
