"""What a person sees who follows a run: the real command in a pseudo-terminal, a real server, and a scripted journal.

The test plays the services: it says what they would say, and looks at the screen after each fact.
"""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from rich.console import Console

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.cli.console import SPARKS, run_screen
from seamlessflow.client import Client
from seamlessflow.config.run import load_run_config
from seamlessflow.contracts import (
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStarted,
    EpisodeStatus,
    Event,
    Role,
    RoleAssigned,
    RunEnded,
    RunStarted,
    Sample,
    SamplesReady,
    Sampling,
    SegmentSampled,
    StepTaken,
    WeightsLoaded,
    WeightsPublished,
)
from seamlessflow.contracts.streams import run_streams
from seamlessflow.reports.run_view import RunView, StepRow
from seamlessflow.runtime.journal import Journal
from tests.cli.terminal import CTRL_C, Terminal

pytestmark = pytest.mark.system

CONFIG = """
model = { name = "/nowhere", engine = "scripted" }
agents = [{ env = "a", command = ["true"], reward = "operator:add" }]
evaluation = { before = false, after = false }
[algorithm]
steps = 4
groups_per_step = 1
group_size = 2
"""


class Play:
    """The services, as far as a screen can tell."""

    def __init__(self, client: Client, config: dict) -> None:
        self._client, self._journal, self._config = client, Journal(client.bus, client.store), config

    async def begin(self) -> None:
        for spec in run_streams("r"):
            await self._client.bus.ensure_stream(spec)
        await self.publish(RunStarted(run="r", document=self._config))

    async def publish(self, *events: Event) -> None:
        await self._journal.publish_all(events)

    async def step(self, number: int, reward: float, *ages: tuple[int, int]) -> None:
        """One step, on a group with so many tokens of each weights version, or on none."""
        group, count = f"g{number}", sum(n for _, n in ages)
        sample = Sample(token_ids=(1,) * count, spans=((0, count),), logprobs=(0.0,) * count, versions=ages)
        ready = SamplesReady(
            run="r", episode=f"{group}-0-0", origin=origin(group), status=EpisodeStatus.COMPLETED, reward=reward,
            samples=(sample,), num_sampled=count,
        )  # fmt: skip
        metrics = {"reward": reward, "reward/a": reward}
        taken = StepTaken(run="r", step=number, line=1, weights_version=number, groups=(group,), metrics=metrics)
        await self.publish(*([ready] if ages else []), taken)


@pytest.fixture
def server(tmp_path):
    server = EmbeddedServer(tmp_path / "nats").start()
    yield server
    server.stop()


@pytest.fixture
async def play(server, tmp_path):
    config = load_run_config(config_file(tmp_path)).model_dump(mode="json")
    async with Client.open(server.url, store_url(tmp_path)) as client:
        yield Play(client, config)


@pytest.fixture
def follow(server, tmp_path):
    """``seamlessflow train`` in a window, with its services elsewhere: here."""
    opened = []

    def begin(columns: int = 110, lines: int = 30) -> Terminal:
        arguments = ("train", str(config_file(tmp_path)), "--name", "r", "--nats", server.url, "--store", store_url(tmp_path))
        opened.append(Terminal(tmp_path / "here", *arguments, columns=columns, lines=lines))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


def config_file(folder):
    path = folder / "run.toml"
    path.write_text(CONFIG)
    return path


def store_url(folder):
    return f"file://{folder}/store"


def origin(group, evaluation=None):
    return EpisodeOrigin(group=group, task="t", env="a", index=0, attempt=0, evaluation=evaluation)


def published(version):
    return WeightsPublished(
        run="r", weights_version=version, step=version, path=f"r/weights/{version}", num_bytes=1, wall_seconds=0.1
    )


def loaded(version, pause_seconds):
    return WeightsLoaded(
        run="r", weights_version=version, worker="w", fetch_seconds=0.1, pause_seconds=pause_seconds, num_frozen=0
    )


def role(node, what, epoch=1):
    return RoleAssigned(run="r", node=node, epoch=epoch, role=what, tags=(), reason="because")


def opened(name, evaluation=None):
    return EpisodeOpened(
        run="r",
        episode=name,
        origin=origin(name.rsplit("-", 2)[0], evaluation),
        shard=0,
        bucket=0,
        env="a",
        prompt="?",
        sampling=Sampling(),
        seed=0,
    )


def started(name):
    return EpisodeStarted(run="r", episode=name, runner="n")


def ended(name, evaluation):
    return EpisodeEnded(
        run="r", episode=name, shard=0, origin=origin(name.rsplit("-", 2)[0], evaluation), status=EpisodeStatus.COMPLETED,
        reward=1.0,
    )  # fmt: skip


def segment(start, count):
    return SegmentSampled(
        run="r", episode="e", generation="c1", shard=0, nonce="n", start=start,
        token_ids=tuple(range(count)), logprobs=(0.0,) * count, weights_version=0,
    )  # fmt: skip


END = RunEnded(run="r", reason="completed", steps=4)


async def test_the_table_shows_how_the_run_is_doing(play, follow):
    """Each fact is there as soon as it is in the journal: steps, rewards, tokens, staleness, roles, pauses, evaluation."""
    terminal = follow()
    await play.begin()
    await terminal.wait_for_cell("step", "0/4")
    assert [terminal.cell(label) for label in ("reward", "staleness", "roles", "evaluation")] == ["-"] * 4

    await play.publish(role("local-0", Role.ROLLOUT), role("local-1", Role.IDLE), role("local-agents", Role.SERVE))
    await play.publish(role("local-1", Role.TRAIN, epoch=2))
    await terminal.wait_for_cell("roles", "local-0: rollout, local-1: train")
    await play.publish(opened("g1-0-0"), opened("b-0-0", "before"), opened("d-0-0", "before"))
    await play.publish(started("g1-0-0"), started("b-0-0"), ended("b-0-0", "before"))
    await terminal.wait_for_cell("evaluation", "before 1/2")
    await terminal.wait_for_cell("episodes", "1 running")

    for start in (0, 40, 80):
        await play.publish(segment(start, 40))
        await asyncio.sleep(0.1)  # a speed needs moments that lie apart
    await terminal.wait_for("120 (")
    speed = re.fullmatch(r"120 \((\d+)/s\)", terminal.cell("tokens"))
    assert speed is not None and 0 < int(speed[1]) < 80 / 0.2

    await play.publish(*(published(version) for version in range(3)), loaded(0, 0.25))
    await play.step(1, 0.1, (0, 30))
    await play.step(2, 0.5, (0, 10), (1, 20))
    await play.step(3, 1.0, (2, 25))
    await play.publish(loaded(3, 0.05))
    await terminal.wait_for_cell("pauses", "2 (300 ms)")
    assert terminal.cell("step") == "3/4"
    assert terminal.cell("reward") == "▁▅█"
    assert terminal.cell("staleness") == "0: 75, 1: 10"
    assert re.fullmatch(r"\d+ s", terminal.cell("elapsed"))
    assert [line[:23] for line in terminal.lines() if line.startswith("step   ")][:3] == [
        "step   1/4  reward 0.10", "step   2/4  reward 0.50", "step   3/4  reward 1.00"
    ]  # fmt: skip


async def test_at_the_end_the_table_goes_and_the_lines_stay(play, follow):
    """Of the table nothing is left; each step was said once; the shell gets its terminal as it was."""
    terminal = follow()
    await play.begin()
    await terminal.wait_for_cell("step", "0/4")
    assert not terminal.shows_cursor
    for number in range(1, 5):
        await play.step(number, 0.25 * number)
        await terminal.wait_for_cell("step", f"{number}/4")
    await play.publish(END)

    assert await terminal.end() == 0
    said = terminal.scrolled()
    assert [line[:10] for line in said if re.match(r"step +\d", line)] == [f"step   {n}/4" for n in range(1, 5)]
    assert "r: completed" in said
    assert not [line for line in said if line.startswith(("episodes   0 running", "staleness  "))]
    assert_clean(terminal)


async def test_ctrl_c_leaves_a_clean_terminal(play, follow):
    """Pressed while the table is drawn: it goes, the cursor comes back, and the last lines say how to go on."""
    terminal = follow()
    await play.begin()
    await play.step(1, 0.5)
    await terminal.wait_for_cell("step", "1/4")
    terminal.press(CTRL_C)

    assert await terminal.end() == 130
    said = terminal.scrolled()
    assert any(line.startswith("stopping: the run goes on where its services are") for line in said)
    assert [line[:10] for line in said if re.match(r"step +\d", line)] == ["step   1/4"]
    assert_clean(terminal)


@pytest.mark.parametrize("columns", [80, 132])
def test_a_narrow_window_shows_the_newest_rewards(columns):
    """The curve is as long as there is room, and what is left out is old."""
    view = RunView()
    for number in range(90):
        view.steps.append(StepRow(number + 1, 1, number + 1, float(number), {"reward": (number % 9) / 8}))
    screen = io.StringIO()
    Console(file=screen, width=columns).print(run_screen(view, steps=90, elapsed="12345 s", notes=[], columns=columns))

    shown = screen.getvalue()
    assert "…" not in shown
    newest = "".join(SPARKS[min(number % 9, 7)] for number in range(90))[-20:]
    assert newest in shown
    assert all(label in shown for label in ("step", "episodes", "staleness", "elapsed", "pauses", "evaluation"))


def assert_clean(terminal):
    assert terminal.shows_cursor
    assert terminal.cursor_is_at_line_start
    assert terminal.is_as_before
