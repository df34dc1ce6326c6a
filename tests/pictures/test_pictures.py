"""Pictures of a fleet: one page and one image from the same lanes, of a run or of a simulator, of 1 node or of 1,000."""

import base64
import json
import re
import struct

import pytest

from seamlessflow.timeline import Series, Span, SpanKind, Timeline, TrainStep
from seamlessflow.timeline.draw import write_html, write_png
from seamlessflow.timeline.draw.layout import columns_of, duration, natural, percent, rows_of, short
from seamlessflow.timeline.draw.palette import DARK, LIGHT, WORDS


def fleet(num_nodes, *, profiles=True):
    """As a simulator would give it: every node rolls out, the first one trains in between."""
    spans = [Span("node-0", SpanKind.TRAIN, 40.0, 60.0, "a batch is ready", 2)]
    spans += [Span("node-0", SpanKind.ROLLOUT, start, start + 40, "lent", 1) for start in (0.0, 60.0)]
    spans += [Span(f"node-{place}", SpanKind.ROLLOUT, 0.0, 100.0, busy=0.5) for place in range(1, num_nodes)]
    flights = {f"node-{place}": Series(0.0, 25.0, [1.0, 2.0, 4.0, 8.0]) for place in range(num_nodes)} if profiles else {}
    steps = [TrainStep(step, 50.0 + step, 0.5, 1.0, step) for step in range(1, 4)]
    return Timeline("a fleet", 0.0, 100.0, spans, steps, Series(0.0, 50.0, [3.0, 1.0]), Series(0.0, 50.0, [9.0, 9.0]), flights)


def drawn_data(path):
    """What the page's script is given."""
    (found,) = re.findall(r"const D = (.*);\n", path.read_text())
    return json.loads(found)


def picture_size(path):
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_the_page_needs_nothing_from_anywhere(tmp_path):
    """No address in it, and every placeholder filled."""
    write_html(fleet(3), tmp_path / "gantt.html")
    page = (tmp_path / "gantt.html").read_text()

    assert not re.search(r"https?://|\bsrc=|\bhref=|@import|@[A-Z]+@", page)
    assert page.count("<script>") == page.count("</script>") == 1


def test_the_page_has_every_span(tmp_path):
    """As kind, milliseconds, reason, epoch and busy share; one behind the other, from where the node begins."""
    write_html(fleet(2), tmp_path / "gantt.html")
    first, second = (node["s"] for node in drawn_data(tmp_path / "gantt.html")["nodes"])
    data, kinds = drawn_data(tmp_path / "gantt.html"), list(WORDS)
    rollout, train = kinds.index(SpanKind.ROLLOUT), kinds.index(SpanKind.TRAIN)

    assert data["reasons"] == ["lent", "a batch is ready", ""]
    assert first == [rollout, 40000, 0, 1, 100, train, 20000, 1, 2, 100, rollout, 40000, 0, 1, 100]
    assert second == [rollout, 100000, 2, -1, 50]
    assert list(base64.b64decode(data["nodes"][0]["f"]["v"])) == [32, 64, 128, 255]


def test_queue_depth_and_staleness_of_the_run_lie_under_its_nodes(tmp_path):
    """The page is given both as the lanes have them, names the panels they are drawn in, and has these below the chart."""
    lanes = fleet(3)
    write_html(lanes, tmp_path / "gantt.html")
    page, data = (tmp_path / "gantt.html").read_text(), drawn_data(tmp_path / "gantt.html")

    assert data["queued"]["w"] == 50.0 and data["queued"]["v"] == list(lanes.queued.values) == [3.0, 1.0]
    assert data["flight"]["v"] == [9.0, 9.0]
    assert [tuple(step[:4]) for step in data["steps"]] == [(1, 51.0, 0.5, 1.0), (2, 52.0, 0.5, 1.0), (3, 53.0, 0.5, 1.0)]
    assert page.index('<canvas id="chart"') < page.index('<canvas id="under"')
    assert '["queued", D.queued,' in page and '"staleness of trained tokens, in steps"' in page


def test_a_run_without_queue_and_steps_has_neither_panel_filled(tmp_path):
    """A picture of nodes alone is given nothing to draw under them."""
    write_html(Timeline("r", 0.0, 1.0, [Span("n", SpanKind.ROLLOUT, 0.0, 1.0)]), tmp_path / "gantt.html")
    data = drawn_data(tmp_path / "gantt.html")

    assert (data["queued"], data["flight"], data["steps"]) == (None, None, [])


def test_names_and_reasons_cannot_break_the_page(tmp_path):
    """They are data, wherever they come from."""
    evil = "</script><script>alert(1)</script>"
    write_html(Timeline(evil, 0.0, 1.0, [Span(evil, SpanKind.IDLE, 0.0, 1.0, evil)], notes=[evil]), tmp_path / "gantt.html")

    assert (tmp_path / "gantt.html").read_text().count("<script>") == 1


def test_holes_between_spans_are_away(tmp_path):
    """A simulator may leave out what a node was not there for."""
    spans = [Span("n", SpanKind.ROLLOUT, 1.0, 2.0), Span("n", SpanKind.ROLLOUT, 3.0, 4.0)]
    write_html(Timeline("r", 0.0, 4.0, spans), tmp_path / "gantt.html")
    (node,) = drawn_data(tmp_path / "gantt.html")["nodes"]

    assert (node["o"], node["s"][5:7]) == (1000, [list(WORDS).index(SpanKind.AWAY), 1000])


@pytest.mark.parametrize("num_nodes", [1, 2, 30, 64, 300])
@pytest.mark.parametrize("profiles", [True, False])
def test_an_image_of_any_fleet_fits_on_a_slide(num_nodes, profiles, tmp_path):
    """However many nodes, it is as wide as a slide and not much higher than one."""
    pytest.importorskip("matplotlib")
    write_png(fleet(num_nodes, profiles=profiles), tmp_path / "gantt.png")
    width, height = picture_size(tmp_path / "gantt.png")

    assert width == 2399
    assert height < 0.7 * width


@pytest.mark.parametrize(
    "lanes",
    [
        Timeline("nothing but spans", 0.0, 1.0, [Span("n", SpanKind.IDLE, 0.0, 1.0)]),
        Timeline("an instant", 5.0, 5.0, []),
        fleet(2).part(45, 52),
        fleet(2).part(10, 20),
    ],
    ids=lambda lanes: lanes.title,
)
def test_what_is_missing_is_left_out(lanes, tmp_path):
    """No series, no steps, no time: still a picture."""
    pytest.importorskip("matplotlib")
    write_png(lanes, tmp_path / "gantt.png")
    write_html(lanes, tmp_path / "gantt.html")

    assert drawn_data(tmp_path / "gantt.html")["length"] > 0


def test_nodes_that_train_stand_first_and_names_count_as_people_do():
    """node-2 before node-10."""
    rows = rows_of(fleet(12))

    assert [(group.name, len(group.rows)) for group in rows.groups] == [("train and roll out", 1), ("roll out", 11)]
    assert [row.node for row in rows.rows][:4] == ["node-0", "node-1", "node-2", "node-3"]
    assert sorted(["b-10", "b-9", "a"], key=natural) == ["a", "b-9", "b-10"]
    assert short("a-very-long-name-of-a-node-17") == "…g-name-of-a-node-17"


def test_figures_are_of_the_time_between_the_first_and_the_last_step():
    """Of a part they are of what is shown; where there are no two steps, of everything."""
    assert rows_of(fleet(2)).window == (51.0, 53.0)
    assert rows_of(fleet(2)).shares.busy == 0.75
    assert rows_of(fleet(2).part(0, 100)).window == (0.0, 100.0)
    assert rows_of(Timeline("r", 0.0, 4.0, [Span("n", SpanKind.ROLLOUT, 0.0, 2.0)])).window == (0.0, 4.0)


def test_columns_that_say_nothing_are_left_out():
    """Unless they are what one looks for."""
    assert list(columns_of([row.shares for row in rows_of(fleet(2)).rows])) == [
        "busy", "rollout", "train", "hand-over", "waiting", "idle",
    ]  # fmt: skip


def test_figures_have_the_digits_that_matter():
    """Small shares are not rounded to nothing."""
    assert [percent(share) for share in (0, 0.0021, 0.021, 0.976, 1)] == ["0 %", "0.21 %", "2.1 %", "97.6 %", "100 %"]
    assert [duration(seconds) for seconds in (3.21, 1800, 86400)] == ["3.2 s", "30 minutes", "24 hours"]


def test_every_kind_has_a_word_and_two_colours_of_its_own():
    """In light and in dark."""
    for palette in (LIGHT, DARK):
        assert set(palette.kinds) == set(SpanKind) == set(WORDS)
        assert len({*palette.kinds.values(), palette.page, palette.rollout_few}) == len(SpanKind) + 2


def test_a_name_with_dollar_signs_is_written_as_it_is(tmp_path):
    """It is no formula, and a broken one least of all."""
    from seamlessflow.timeline.draw.png_image import svg

    odd = Timeline("two $\\bad{ dollars$ here", 0.0, 10.0, [Span("a$\\frac{$", SpanKind.ROLLOUT, 0.0, 10.0)])
    write_png(odd, tmp_path / "gantt.png")
    assert picture_size(tmp_path / "gantt.png") and "two $\\bad{ dollars$ here" in svg(odd)


def test_every_kind_has_a_word_and_two_colours():
    """So none is drawn as nothing."""
    assert set(WORDS) == set(LIGHT.kinds) == set(DARK.kinds) == set(SpanKind)
