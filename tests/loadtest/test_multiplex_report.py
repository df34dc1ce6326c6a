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

from loadtest.fleet.multiplex_report import PROMISED, Result, figures_of_grid, keep, missing, print_summary
from loadtest.fleet.timed_cell import Cell

MODES = {"auto": 200.0, "partial-rollout": 160.0, "sync-colocated": 100.0}
RATIOS = (1 / 1, 1 / 4)


def result(way: str, tokens: float, **changed: object) -> Result:
    """A cell as if it had been played; what of its figures is named replaces what they would be."""
    of_cell = {name: changed.pop(name) for name in list(changed) if name in ("ratio", "agentic", "shifts")}
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
    assert "with nodes that die and join: auto: 77 tokens/s" in said
    assert "FAILED cell 9: too slow" in said


def test_cells_are_kept_as_json(tmp_path: Path) -> None:
    """All of them, with all figures."""
    plain = [replace(each, figures=cast(Any, SimpleNamespace(**vars(each.figures)))) for each in grid()]
    kept = json.loads(keep(plain, tmp_path / "new").read_text())
    assert len(kept) == len(plain) and {"way", "cell", "figures", "churned"} <= set(kept[0])
