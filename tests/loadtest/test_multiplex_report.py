"""Figures of a grid of played cells: every promised key, the worst cell where all are promised, churn apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

pytest.importorskip("torch")

from loadtest.fleet.multiplex_report import PROMISED, figures_of, figures_of_grid, missing
from loadtest.fleet.multiplex_results import Result, keep, print_summary, words_of
from loadtest.fleet.timed_cell import Cell
from loadtest.fleet.virtual_cell import VirtualFigures

MODES = {"auto": 200.0, "partial-rollout": 160.0, "sync-colocated": 100.0}
RATIOS = (1 / 1, 1 / 4)


def result(way: str, tokens: float, **changed: object) -> Result:
    """A cell as if it had been played; what of its figures is named replaces what they would be."""
    of_cell = {name: changed.pop(name) for name in list(changed) if name in ("ratio", "agentic", "shifts", "nodes")}
    churned = bool(changed.pop("churned", False))
    figures = {
        "throughput": tokens,
        "all_throughput": tokens,
        "over_bound": 0.96,
        "busy": 0.99,
        "least_busy": 0.98,
        "handover": 0.002,
        "lost_or_repeated": 0,
        "step_seconds": 300.0,
        "moved": 0,
        "reprefilled": 0.0,
        "staleness_mean": 1.0,
        "staleness_max": 2,
        "masked": 0.0,
    }
    cell = Cell.from_json(Cell(way, "auto").to_json() | of_cell)
    return Result(way, cell, cast(Any, SimpleNamespace(**(figures | changed))), 0.2, 0.5, [], None, churned)


def grid() -> list[Result]:
    """Two ratios of everything."""
    return [
        result(way, tokens, ratio=ratio, agentic=agentic, shifts=shifts)
        for agentic in (False, True)
        for shifts in (False, True)
        for ratio in RATIOS
        for way, tokens in MODES.items()
    ]


def test_a_whole_grid_has_every_promised_key_with_goal_and_verdict() -> None:
    """Of single turns and of agents."""
    figures = figures_of_grid(grid(), strict=True)

    assert set(figures) == {key + suffix for key in PROMISED for suffix in ("", "_agentic")}
    assert all(figure.goal is not None and figure.met is not None for figure in figures.values())
    assert figures["throughput_vs_sync_colocated"].value == pytest.approx(2.0)
    assert figures["throughput_vs_best_split_shifting"].met is False
    assert missing(figures) == {}


def test_what_was_not_played_is_named_with_what_it_takes() -> None:
    """Instead of being left out without a word."""
    figures = figures_of_grid([each for each in grid() if each.way == "auto" and not each.cell.agentic], strict=True)
    lacking = missing(figures)

    assert lacking["throughput_vs_sync_colocated"] == "--modes auto,sync-colocated --kinds stationary, --workloads single"
    assert "busy_share" not in lacking and "busy_share_agentic" in lacking


def test_shares_are_those_of_the_worst_cell_with_the_mean_beside() -> None:
    """What is promised of every node is promised of every cell: a median would hide half of them."""
    cells = [
        result("auto", 200.0, ratio=1.0),
        result("auto", 200.0, ratio=0.5),
        result("auto", 200.0, ratio=0.25, least_busy=0.9, busy=0.93, handover=0.02, over_bound=0.8),
    ]
    figures = figures_of_grid(cells, strict=True)

    assert {key: figures[key].value for key in ("busy_share", "handover_share", "throughput_vs_bound")} == {
        "busy_share": 0.9,
        "handover_share": 0.02,
        "throughput_vs_bound": 0.8,
    }
    assert figures["busy_share"].reference_value == pytest.approx((0.99 + 0.99 + 0.93) / 3)
    assert not any(figures[key].met for key in ("busy_share", "handover_share", "throughput_vs_bound"))


@pytest.mark.parametrize(("nodes", "goal"), [(8, 1.05), (63, 1.05), (64, 1.0), (1000, 1.0)])
def test_of_a_large_fleet_as_much_is_asked_for_as_the_best_split_has(nodes: int, goal: float) -> None:
    """A key of its size: its goal and how many nodes it is of are printed with it. Other goals stay."""
    cells = [result(way, tokens, nodes=nodes) for way, tokens in MODES.items()]
    figures = figures_of_grid(cells, strict=True)
    figure = figures["throughput_vs_best_split_stationary"]

    assert (figure.goal, figure.met) == (goal, True)
    assert f"1 cells of {nodes} nodes" in figure.reference
    assert figures["throughput_vs_sync_colocated"].goal == 2.0


def test_one_large_fleet_among_small_ones_asks_for_what_a_large_one_can_have() -> None:
    """No cell is held to more than its size allows."""
    cells = [result(way, tokens, nodes=nodes) for nodes in (8, 64) for way, tokens in MODES.items()]
    assert figures_of_grid(cells, strict=True)["throughput_vs_best_split_stationary"].goal == 1.0


def test_a_cell_with_churn_counts_for_lost_tokens_alone() -> None:
    """Its nodes were away; where every cell had churn all figures are of those."""
    calm, churned = result("auto", 200.0), result("auto", 120.0, churned=True, least_busy=0.5, lost_or_repeated=7)
    figures = figures_of_grid([calm, churned], strict=True)

    assert figures["busy_share"].value == 0.98
    assert figures["lost_or_repeated_tokens"].value == 7.0 and figures["lost_or_repeated_tokens"].met is False
    assert "1 of them with churn" in figures["lost_or_repeated_tokens"].reference
    assert figures_of_grid([churned], strict=True)["busy_share"].value == 0.5


def test_the_summary_shows_every_cell_the_whole_run_of_one_that_shifts(capsys: pytest.CaptureFixture[str]) -> None:
    """As its figure counts it; and cells that failed, and those with churn."""
    results = [
        result("auto", 200.0),
        result("auto", 150.0, shifts=True, throughput=151.0, all_throughput=142.0),
        result("auto", 77.0, churned=True),
    ]
    print_summary(Console(width=190), results, ["cell 9: too slow"])
    said = capsys.readouterr().out

    assert "200 (0.960)" in said and "142 (0.960)" in said and "151 (0.960)" not in said
    assert "with nodes that die and join: auto, single turn, timed: 77 tokens/s" in said
    assert "FAILED cell 9: too slow" in said


def test_cells_are_kept_as_json(tmp_path: Path) -> None:
    """All of them, with all figures."""
    plain = [replace(each, figures=cast(Any, SimpleNamespace(**vars(each.figures)))) for each in grid()]
    kept = json.loads(keep(plain, tmp_path / "new").read_text())
    assert len(kept) == len(plain) and {"way", "cell", "figures", "churned"} <= set(kept[0])


def virtual(way: str, tokens: float, **changed: object) -> Result:
    """A cell as if it had been simulated."""
    of_cell = {name: changed.pop(name) for name in list(changed) if name in ("ratio", "agentic", "shifts")}
    churned = bool(changed.pop("churned", False))
    figures = VirtualFigures(
        throughput=tokens,
        all_throughput=tokens,
        over_bound=0.97,
        busy=0.99,
        least_busy=0.985,
        handover=0.001,
        lost_or_repeated=0,
        reprefilled=0.0,
        moved=0,
        staleness_mean=1.0,
        staleness_max=2,
        masked=0.0,
        step_seconds=300.0,
        steps=16,
        losses={"small batches": 0.021, "idle": 0.0002},
        split_throughputs={"2": 90.0, "3": tokens} if way == "partial-rollout" else {},
    )
    cell = Cell.from_json(Cell(way, "auto", episode_scale=1).to_json() | of_cell)
    return Result(way, cell, replace(figures, **changed), 0.0, 0.0, [], None, churned, True)  # type: ignore[arg-type]


def mixed() -> list[Result]:
    """Simulated at two ratios, timed at one of them, where the simulator is 2 and 4 % off."""
    timed = [
        replace(result("auto", 200.0, ratio=1 / 4), predicted=204.0),
        replace(result("sync-colocated", 100.0, ratio=1 / 4), predicted=96.0),
        result("auto", 150.0, ratio=1 / 4, churned=True, lost_or_repeated=3),
    ]
    ratios = {1.0: 1.8, 1 / 4: 2.2}
    simulated = [virtual("auto", 100.0 * times, ratio=ratio) for ratio, times in ratios.items()]
    return [*timed, *simulated, *(virtual("sync-colocated", 100.0, ratio=ratio) for ratio in ratios)]


def test_a_key_of_the_simulated_grid_says_so_and_how_far_the_simulator_was_off() -> None:
    """And what the timed cells alone gave stands beside it."""
    figures = figures_of(mixed(), strict=True)
    times, timed = figures["throughput_vs_sync_colocated"], figures["throughput_vs_sync_colocated_timed"]

    assert (times.value, times.how, times.off_by) == (pytest.approx(2.0), "simulated", pytest.approx(0.04))
    assert (timed.value, timed.how, timed.off_by) == (pytest.approx(2.0), "timed", None)
    assert "1 cells" in timed.reference and "2 cells" in times.reference
    assert figures["simulator_error"].value == pytest.approx(0.04)
    assert "auto 2.0%, sync-colocated 4.0%" in figures["simulator_error"].reference
    assert all(figure.how in ("timed", "simulated") for figure in figures.values())
    assert times.as_json()["how"] == "simulated" and times.as_json()["off_by"] == pytest.approx(0.04)


def test_what_was_lost_is_counted_over_real_services_and_simulated_cells() -> None:
    """One figure: nothing may be lost anywhere."""
    cells = [*mixed(), virtual("auto", 10.0, ratio=0.5, lost_or_repeated=5)]
    lost = figures_of(cells, strict=True)["lost_or_repeated_tokens"]

    assert lost.value == 8.0 and lost.how == "timed" and "1 of them with churn" in lost.reference
    assert figures_of([each for each in cells if each.is_virtual], strict=True)["lost_or_repeated_tokens"].how == "simulated"


def test_of_agents_it_says_that_nodes_died_in_a_simulated_cell_and_in_no_timed_one() -> None:
    """And what was lost there counts as any other."""
    timed = result("auto", 100.0, agentic=True)
    cells = [timed, virtual("auto", 10.0, agentic=True), virtual("auto", 9.0, agentic=True, churned=True, lost_or_repeated=4)]
    lost = figures_of(cells, strict=True)["lost_or_repeated_tokens_agentic"]

    assert (lost.value, lost.how) == (4.0, "timed")
    assert "timed: cells played, 0 of them with churn; simulated: 2 cells played, 1 of them with churn" in lost.reference


def test_without_a_timed_cell_how_far_the_simulator_is_off_is_not_known() -> None:
    """Neither of agents, where single turns alone were timed; and nobody is told that it is 0."""
    agents = [virtual(way, tokens, agentic=True) for way, tokens in MODES.items()]
    figures = figures_of([*mixed(), *agents], strict=True)

    assert figures["throughput_vs_bound_agentic"].off_by is None and figures["throughput_vs_bound"].off_by is not None
    assert "simulator_error_agentic" not in figures


def test_every_table_and_every_line_says_whether_it_was_timed_or_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulated line also says where time was lost, and which splits were tried."""
    print_summary(Console(width=190), mixed(), [])
    said = capsys.readouterr().out

    assert "single turn, stationary: timed, real services" in said
    assert "single turn, stationary: simulated (off by 4.0% where timed)" in said
    words = words_of(virtual("partial-rollout", 160.0))
    assert "missing: small batches 2.1%" in words and "idle" not in words and "splits 2: 90, 3: 160" in words
    rows = json.loads(keep([virtual("auto", 1.0)], tmp_path).read_text())
    assert rows[0]["how"] == "simulated" and rows[0]["figures"]["losses"]
