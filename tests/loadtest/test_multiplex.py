"""The timed fleet, as small as can be: real services on timed devices, a whole run, and what is computed from its journal."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from loadtest.fleet.multiplex import main
from loadtest.fleet.timed_cell import Cell
from loadtest.fleet.timed_figures import living_steps, misplaced
from loadtest.fleet.timed_run import play


def test_a_cell_is_played_to_its_end_and_no_token_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes that take turns at rollout and training; the JSON has what tools are promised."""
    main(["--quick", "--results", str(tmp_path)])
    document = json.loads((tmp_path / "multiplex.json").read_text())
    cell, virtual = json.loads((tmp_path / "multiplex_cells.json").read_text())

    figures = document["figures"]
    assert {"busy_share", "handover_share", "lost_or_repeated_tokens", "throughput_vs_bound"} <= set(figures)
    assert figures["lost_or_repeated_tokens"]["value"] == 0
    assert 0 < figures["throughput_vs_bound"]["value"] < 1
    assert 0 < figures["busy_share"]["value"] <= 1
    assert cell["failures"] == [] and cell["figures"]["steps"] == 3
    assert all(math.isfinite(cell["figures"][name]) for name in ("throughput", "staleness_mean", "reprefilled"))
    assert all(figure["met"] is not None for figure in figures.values())
    assert (cell["how"], virtual["how"]) == ("timed", "simulated")
    assert virtual["figures"]["lost_or_repeated"] == 0 and 0 < virtual["figures"]["over_bound"] < 1
    assert {figures[key]["how"] for key in ("busy_share_timed", "simulator_error")} == {"timed"}
    assert figures["busy_share"]["how"] == "simulated" and figures["busy_share"]["off_by"] == cell["off_by"]
    said = capsys.readouterr().out
    assert "1 timed and 1 simulated cells, about" in said and "multiplex_cells.json" in said
    assert "not measured: throughput_vs_sync_colocated (needs --modes auto,sync-colocated" in said


@pytest.mark.slow
@pytest.mark.system
def test_nodes_that_die_and_join_lose_and_repeat_no_token(tmp_path: Path) -> None:
    """Now and then a node goes as a killed one would, and another comes: all steps are taken, every token is there once."""
    cell = Cell("churn", "multiplexed", nodes=4, train_nodes=2, steps=5, episode_scale=16, time_scale=20.0)
    played = asyncio.run(play(cell, churn_seconds=15.0, limit_seconds=900.0, keep=tmp_path))

    assert len(played.died) >= 2
    assert [step.step for step, _ in living_steps(played.events)] == [1, 2, 3, 4, 5]
    assert misplaced(event for event, _ in played.events) == {}
    assert [words for said in played.processes.values() for words in said["failures"]] == []
