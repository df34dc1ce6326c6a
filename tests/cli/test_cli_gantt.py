"""``seamlessflow gantt``: pictures and a table of any run that a server has."""

import sys

import pytest

from seamlessflow.cli import gantt
from seamlessflow.cli.console import make_console
from seamlessflow.client import Client
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import ConfigError
from seamlessflow.runtime.journal import Journal
from seamlessflow.timeline import Span, SpanKind, Timeline
from seamlessflow.timeline.draw.layout import rows_of
from tests.domain.lanes_builders import ROLLOUT, SERVE, assigned, claimed, loaded, requested, segment, started, taken

JOURNAL = (
    started(),
    assigned("node-a", 1, ROLLOUT),
    loaded("w", "node-a"),
    taken("node-a", 1),
    requested("g"),
    claimed("g", "w"),
    segment("g"),
)


async def journal_on(server, folder, *events):
    """A server that has a run r in which this was said."""
    async with Client.open(server.url, f"file://{folder}") as client:
        for spec in run_streams("r"):
            await client.bus.ensure_stream(spec)
        journal = Journal(client.bus, client.store)
        for event in events:
            await journal.publish(event)


async def test_a_run_that_goes_on_is_drawn_up_to_now(own_server, tmp_path):
    """Nothing but the server's address and the run's name is needed."""
    await journal_on(own_server, tmp_path / "store", *JOURNAL)
    async with Client.open(own_server.url) as client:
        lanes = await gantt.read_lanes(client, "r")

    assert lanes.nodes == ["node-a"]
    assert lanes.spans[0].kind is SpanKind.AWAY
    assert "the run has not ended" in lanes.notes[0]


async def test_a_run_without_devices_has_nothing_to_draw(own_server, tmp_path):
    """Agent-runners and managers alone are no picture."""
    await journal_on(own_server, tmp_path / "store", started(), assigned("agents", 1, SERVE))
    async with Client.open(own_server.url) as client:
        assert not (await gantt.read_lanes(client, "r")).spans


LANES = Timeline("r", 0.0, 10.0, [Span("node-a", SpanKind.ROLLOUT, 0.0, 10.0)])


def test_both_pictures_are_written_and_named(tmp_path, capsys):
    """Into a folder that need not be there."""
    pytest.importorskip("matplotlib")
    gantt._write(make_console(), LANES, tmp_path / "new", png=True)

    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["gantt.html", "gantt.png"]
    assert f"{tmp_path}/new/gantt.html, {tmp_path}/new/gantt.png" in capsys.readouterr().out


def test_without_matplotlib_the_page_is_written_and_the_rest_explained(tmp_path, capsys, monkeypatch):
    """What to install, or what to leave out."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    gantt._write(make_console(), LANES, tmp_path, png=True)

    assert [path.name for path in tmp_path.iterdir()] == ["gantt.html"]
    assert "pip install 'seamlessflow[report]'`, or say --no-png" in capsys.readouterr().out


@pytest.mark.parametrize(("since", "until"), [(20.0, None), (None, -1.0), (12.0, 30.0)])
def test_a_time_in_which_nothing_was_is_said(since, until):
    """With how long the run lasted."""
    with pytest.raises(ConfigError, match=r"run r lasted 10\.0 s"):
        gantt._part(LANES, since, until)


def test_the_table_of_a_small_fleet_has_its_nodes(capsys):
    """And all together."""
    gantt._print(make_console(), LANES, rows_of(LANES))

    shown = capsys.readouterr().out
    assert "node-a" in shown and "all" in shown and "100 %" in shown


def test_the_table_of_a_large_fleet_has_its_groups_and_the_least_busy(capsys):
    """64 lines say less than a few."""
    spans = [Span(f"node-{place}", SpanKind.ROLLOUT, 0.0, 10.0, busy=1 - place / 100) for place in range(64)]
    lanes = Timeline("r", 0.0, 10.0, spans)
    gantt._print(make_console(), lanes, rows_of(lanes))

    shown = capsys.readouterr().out
    assert "64 nodes: roll out" in shown
    assert "least busy: node-63" in shown and "least busy: node-59" in shown
    assert "node-58" not in shown


def test_a_place_where_nothing_can_be_written_is_refused_with_what_to_do(tmp_path):
    """A file, or a folder of somebody else's: one line and no traceback."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="give --out a folder that you may write to"):
            gantt._write(make_console(), Timeline("r", 0.0, 1.0, [Span("n", SpanKind.ROLLOUT, 0.0, 1.0)]), folder, png=False)
