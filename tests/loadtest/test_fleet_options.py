"""Command lines of the fleet benchmarks: a typo ends them before anything is played, and help says what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from loadtest.fleet import fleet, multiplex
from loadtest.fleet.constants import CHURN_SECONDS
from loadtest.fleet.estimate import real_seconds, words_of_time
from loadtest.fleet.multiplex import _options
from loadtest.fleet.multiplex_plan import KEY_MODES, Planned, plan_of
from loadtest.fleet.multiplex_report import PROMISED
from loadtest.fleet.timed_cell import Cell
from loadtest.fleet.timed_modes import WAYS


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--modes auto,foo", "'foo'; there are sync-colocated, sync-disaggregated, one-step-off"),
        ("--workloads agnetic", "'agnetic'; there are single, agentic"),
        ("--kinds steady", "'steady'; there are stationary, shifting"),
        ("--kinds stationary,", "expected words with one comma"),
        ("--ratios 2.5,0", "'0': expected a number above 0"),
        ("--ratios nan", "'nan': expected a number above 0"),
        ("--nodes 1", "'1': expected a whole number of at least 2"),
        ("--steps 5", "needs 6, of which 4 warm up"),
        ("--time-scale 0", "expected a number above 0"),
        ("--episode-scale 64", "at least 1 and at most 32"),
        ("--churn -1", "expected a number above 0"),
        ("--churn 30", "--churn: only together with --timed-all"),
        ("--no-timed --time-scale 60", "--time-scale: not together with --no-timed"),
        ("--no-timed --timed-all", "not allowed with argument"),
        ("--quick --nodes 4 --modes auto", "--nodes, --modes: not together with --quick"),
        ("--quick --churn 5", "--churn: not together with --quick"),
    ],
)
def test_multiplex_refuses_what_it_could_not_play(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing that is typed is ignored."""
    with pytest.raises(SystemExit):
        multiplex.main(typed.split())
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--sizes 8", "--sizes: only together with --grid"),
        ("--modes auto --steps 12", "--steps, --modes: only together with --grid"),
        ("--grid --sizes 8,many", "'many': expected a whole number of at least 2"),
        ("--grid --steps 2", "expected a whole number of at least 3"),
        ("--grid --modes foo", "'foo'; there are sync-colocated"),
        ("--grid --workloads reasoning", "'reasoning'; there are single, agentic"),
        ("--grid --quick", "--grid: not together with --quick"),
    ],
)
def test_fleet_refuses_what_it_could_not_simulate(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options of the grid mean nothing without it."""
    with pytest.raises(SystemExit):
        fleet.main(typed.split())
    assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after hours."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        multiplex.main(["--results", str(tmp_path / "file")])
    assert "nothing can be written there" in capsys.readouterr().err


@pytest.mark.parametrize("main", [multiplex.main, fleet.main], ids=["multiplex", "fleet"])
def test_help_teaches_cells_modes_times_and_figures(main: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Every mode, every key, how long it takes, and commands to copy."""
    assert callable(main)
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    keys = PROMISED if main is multiplex.main else fleet.PROMISED
    assert all(name in said for name in (*WAYS, *keys))
    assert "cell" in said and "How long" in said and "Examples:" in said
    assert " min" in said and " h" in said


def test_with_everything_timed_each_cell_that_is_asked_for_is_played(tmp_path: Path) -> None:
    """Each mode of each ratio; and one cell for each workload in which nodes die and join, unless all have that."""
    asked = ["--timed-all", "--modes", "auto,sync-colocated", "--ratios", "2.5,4", "--workloads", "agentic"]
    asked += ["--results", str(tmp_path)]
    plan = plan_of(_options(asked))
    calm = [each for each in plan.timed if each.churn_seconds is None]

    assert plan.virtual == ()
    assert [each.churn_seconds for each in plan.timed if each not in calm] == [CHURN_SECONDS]
    assert all(each.base.agentic for each in plan.timed)
    assert {_place(each) for each in calm} == {
        (way, ratio, True, shifts) for way in ("auto", "sync-colocated") for ratio in (2.5, 4.0) for shifts in (False, True)
    }
    churned = plan_of(_options([*asked, "--churn", "20"])).timed
    assert len(churned) == len(calm) and {each.churn_seconds for each in churned} == {20.0}


def test_without_options_every_cell_that_keys_need_is_simulated_and_a_few_are_timed(tmp_path: Path) -> None:
    """At one ratio; of agents auto alone, and one with churn; all in well under an hour on two cores."""
    plan = plan_of(_options(["--results", str(tmp_path)]))
    ratios = (1.0, 1.7, 2.5, 4.0, 7.0)

    assert {_place(each) for each in plan.virtual if each.churn_seconds is None} == {
        (way, ratio, agentic, shifts)
        for way in KEY_MODES
        for ratio in ratios
        for agentic in (False, True)
        for shifts in (False, True)
    }
    calm = [_place(each) for each in plan.timed if each.churn_seconds is None]
    assert sorted(calm) == sorted([*((way, 2.5, False, False) for way in KEY_MODES), ("auto", 2.5, True, False)])
    assert [_place(each) for each in plan.timed if each.churn_seconds] == [("auto", 2.5, False, False)]
    assert [(*_place(each), each.churn_seconds) for each in plan.virtual if each.churn_seconds] == [
        ("auto", 2.5, False, False, pytest.approx(1800.0)),
        ("auto", 2.5, True, False, pytest.approx(600.0)),
    ]
    timed = sum(each.seconds for each in plan.timed)
    assert timed + sum(each.seconds for each in plan.virtual) / 2 < 3300


def test_what_is_left_out_is_not_timed_either(tmp_path: Path) -> None:
    """A ratio of the grid, a mode, a kind; and none at all where nobody wants timed cells."""
    asked = ["--modes", "auto,multiplexed", "--ratios", "1,4,7", "--kinds", "shifting", "--results", str(tmp_path)]
    timed = {_place(each) for each in plan_of(_options(asked)).timed if each.churn_seconds is None}

    assert timed == {("auto", 4.0, False, True), ("auto", 4.0, True, True)}
    assert plan_of(_options([*asked, "--no-timed"])).timed == ()


def _place(planned: Planned) -> tuple[str, float, bool, bool]:
    return planned.way, round(1 / planned.base.ratio, 6), planned.base.agentic, planned.base.shifts


def test_a_cell_takes_as_long_as_its_work_at_its_time_scale() -> None:
    """Twice the steps take nearly twice as long; synchronous modes and agents take longer."""
    cell = Cell("auto", "auto", steps=16, episode_scale=16, time_scale=30.0)

    def seconds(**changed: object) -> float:
        return real_seconds(Cell.from_json(cell.to_json() | changed))

    assert 1.5 < seconds(steps=32) / seconds() < 2.0
    assert seconds(mode="sync-colocated") > seconds()
    assert seconds(agentic=True) > seconds()
    assert (words_of_time(600), words_of_time(7200)) == ("10 min", "2.0 h")
