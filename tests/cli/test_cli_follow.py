"""Following a run: its past is shown once, what is there is not published again, and what goes wrong is said."""

import asyncio
import io
import json

import numpy as np
import pytest
from rich.console import Console

from seamlessflow.bus.base import Message
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.cli import follow, results
from seamlessflow.cli.follow import Follower
from seamlessflow.cli.metrics_files import MetricsFiles
from seamlessflow.cli.run_location import Folder
from seamlessflow.cli.run_session import feed
from seamlessflow.cli.status import ledger_table
from seamlessflow.client import Client, NoStore
from seamlessflow.codec import pack_record
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import (
    EpisodeEnded,
    EpisodeOrigin,
    EpisodeStatus,
    GroupAdmitted,
    RunEnded,
    RunPhase,
    RunStarted,
    RunState,
    StepTaken,
    TaskSubmitted,
    WeightsPublished,
)
from seamlessflow.contracts.routes import RUNS_BUCKET
from seamlessflow.contracts.streams import journal_stream, run_streams
from seamlessflow.datasets import Question, Questions, training_task
from seamlessflow.errors import ConfigError
from seamlessflow.reports.ledger import Account, Ledger
from seamlessflow.runtime.journal import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, model_path, publish_folder, weights_path
from seamlessflow.weights.delta import encode
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import parse_tensors, tensor_digests

CONFIG = parse_run_config(
    {
        "model": {"name": "m"},
        "agents": [{"env": "a", "entrypoint": "m:f"}],
        "algorithm": {"steps": 2, "groups_per_step": 2},
        "evaluation": {"before": False, "after": False},
    }
)
QUESTIONS = Questions(tuple(Question(str(i), {}) for i in range(9)), ())
SECONDS = 10.0


class Desk:
    """A run's journal in memory, and somebody who follows it with a pipe for a screen."""

    def __init__(self, folder):
        self.bus, self.store = MemoryBus(), Store(f"file://{folder}/store")
        self.journal, self.client = Journal(self.bus, self.store), Client(self.bus, self.store)
        self.folder, self.screen = Folder(folder), io.StringIO()
        self.console = Console(file=self.screen, width=1000, soft_wrap=True)

    async def begin(self, *events):
        for spec in run_streams("r"):
            await self.bus.ensure_stream(spec)
        await self.journal.publish_all((RunStarted(run="r", document=CONFIG.model_dump(mode="json")), *events))

    def follower(self):
        return Follower("r", CONFIG, self.folder, self.console)

    async def follow(self):
        """To the run's end."""
        follower = self.follower()
        async with asyncio.timeout(SECONDS):
            await follower.run_until_end(self.client)
        return follower


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def step(number, line=1):
    return StepTaken(run="r", step=number, line=line, weights_version=number, groups=(), metrics={"reward": 0.5})


def failed():
    origin = EpisodeOrigin(group="g", task="t", env="a", index=0, attempt=0)
    return EpisodeEnded(
        run="r", episode="g-0-0", shard=0, origin=origin, status=EpisodeStatus.NOT_STARTED, reason="no module named [m]"
    )


END = RunEnded(run="r", reason="completed", steps=2)


async def test_failures_are_lines_and_lines_do_not_wrap(desk):
    """One line for a step and one for a failure, brackets and all."""
    await desk.begin(step(1), failed(), END)
    await desk.follow()

    lines = desk.screen.getvalue().splitlines()
    assert any(line.startswith("step   1/2") and line.endswith(" s") for line in lines)
    assert "failed: episode g-0-0 (a): not_started: no module named [m]" in lines
    assert len(lines) == 2


async def test_a_logprob_gap_that_is_an_alarm_is_said_below_its_step_and_in_the_result(desk):
    """With who is off; a step before it that was beyond the limit alone is not."""
    metrics = {"reward": 0.5, "logprob_gap": 0.4, "logprob_gap_limit": 0.1, "logprob_gap/n1": 0.4}
    steps = [
        step(number).model_copy(update={"metrics": metrics | {"logprob_gap_alarm": alarm}})
        for number, alarm in ((1, 0.0), (2, 1.0))
    ]
    await desk.begin(*steps, END)
    follower = await desk.follow()
    lines = desk.screen.getvalue().splitlines()
    await results.finish(Client(desk.bus, NoStore()), "r", CONFIG, QUESTIONS, follower, desk.folder, desk.console)

    [warning] = [line for line in lines if line.startswith("logprob gap")]
    assert lines[-1] == warning and "(engine transformers, version 1: n1 0.4)" in warning
    assert "1 steps of 2, up to 0.4 nats" in desk.screen.getvalue()
    assert json.loads((desk.folder.path / "summary.json").read_text())["logprob_gap"]["warning"] == warning


async def test_a_second_command_writes_no_step_twice(desk):
    """The first one saw step 1; a half-written line of it goes away; the second one adds step 2."""
    await desk.begin(step(1))
    first = asyncio.create_task(desk.follow())
    async with asyncio.timeout(SECONDS):
        while "step   1/2" not in desk.screen.getvalue():
            await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    path = desk.folder.path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"time": 12')
    await desk.journal.publish_all((step(2), END))
    await desk.follow()

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["line"], row["step"]) for row in rows] == [(1, 1), (1, 2)]


def test_each_step_reaches_tensorboard_once(tmp_path):
    """A later command opens a file of its own and adds only what is new."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in ((1, 2), (1, 2, 3)):
        files = MetricsFiles(tmp_path)
        for number in steps:
            files.add(step(number), 100.0 + number)
        files.close()
    found = []
    for path in sorted((tmp_path / "tensorboard").iterdir()):
        board = loader.EventAccumulator(str(path), size_guidance={loader.TENSORS: 0}).Reload()
        found += [(each.step, each.wall_time) for tag in board.Tags()["tensors"] for each in board.Tensors(tag)]

    assert sorted(found) == [(1, 101.0), (2, 102.0), (3, 103.0)]


async def test_tasks_that_are_in_the_journal_are_not_published_again(desk, monkeypatch):
    """Not even past the ten minutes in which the server knows them: whoever feeds waits for the journal's end first."""
    admitted = [GroupAdmitted(run="r", group=f"g{i}", task=f"train-{i}", env="a", num_episodes=8, step=0) for i in range(2)]
    await desk.begin(*(training_task("r", CONFIG, QUESTIONS, i) for i in range(5)), *admitted)
    published = []

    async def submit(task):
        published.append(task.task)

    monkeypatch.setattr(desk.client, "submit", submit)
    follower = desk.follower()
    following = asyncio.create_task(follower.run_until_end(desk.client))
    async with asyncio.timeout(SECONDS):
        await follower.up_to_date.wait()
        feeding = asyncio.create_task(feed(desk.client, "r", CONFIG, QUESTIONS, follower.view))
        while len(published) < 3:
            await asyncio.sleep(0.01)
    for task in (following, feeding):
        task.cancel()
    await asyncio.gather(following, feeding, return_exceptions=True)

    assert published == ["train-5", "train-6", "train-7"]  # three steps of two groups ahead of the two admitted


async def test_a_run_that_has_ended_gets_no_more_tasks(desk):
    """Resumed after its end, it only shows what it came to."""
    await desk.begin(END)
    follower = await desk.follow()
    before = await desk.bus.last(journal_stream("r"), ">")
    await feed(desk.client, "r", CONFIG, QUESTIONS, follower.view)

    assert (await desk.bus.last(journal_stream("r"), ">")).seq == before.seq


async def test_what_a_queued_run_waits_for_is_said(desk, monkeypatch):
    """In the scheduler's words."""
    monkeypatch.setattr(follow, "STATE_SECONDS", 0.01)
    await desk.begin()
    state = RunState(phase=RunPhase.QUEUED, reason="a node that can train", requested_at=0.0)
    await (await desk.bus.kv(RUNS_BUCKET)).put("r", pack_record(state))
    following = asyncio.create_task(desk.follow())
    async with asyncio.timeout(SECONDS):
        while "waits" not in desk.screen.getvalue():
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

    assert desk.screen.getvalue() == "queued, waits: a node that can train\n"


async def test_a_refused_run_says_why(desk):
    """It has no journal that could be waited for."""
    state = RunState(phase=RunPhase.REFUSED, reason="no such key", requested_at=0.0)
    await (await desk.bus.kv(RUNS_BUCKET)).put("r", pack_record(state))

    with pytest.raises(ConfigError, match="refused: no such key"):
        await desk.follow()


async def test_an_event_that_is_not_in_our_store_is_an_error_that_says_what_to_give(desk):
    """Passing over it would bend every sum."""
    await desk.begin(TaskSubmitted(run="r", task="big", env="a", prompt="x" * 100_000))
    for store in (NoStore(), Store(f"file://{desk.folder.path}/another")):
        with pytest.raises(ConfigError, match="give --store URL"):
            [event async for _, event in Client(desk.bus, store).events("r")]
    with pytest.raises(ConfigError, match="give --store URL"):
        await Client(desk.bus, NoStore()).submit(TaskSubmitted(run="r", task="big", env="a", prompt="x" * 100_000))


async def test_a_malformed_message_is_passed_over(desk):
    """Its reader has dead-lettered it."""
    await desk.begin()
    await desk.bus.publish(Message(subject="sf.r.task.a.t", payload=b"\xff", message_id="m"))
    await desk.journal.publish(END)

    assert [type(event) for _, event in [each async for each in desk.client.events("r")]] == [RunStarted, RunEnded]


async def test_the_model_folder_is_made_of_a_full_version_and_what_changed_since(desk):
    """Whatever the last version was published as; an older one is never taken for it."""
    files, described = [], {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    for content in (b"aaaa", b"abba"):
        header = json.dumps({"w": described}).encode()
        files.append(len(header).to_bytes(8, "little") + header + content)
    old, new = (parse_tensors(np.frombuffer(file, np.uint8), "w")[0] for file in files)
    publish_folder(desk.store, model_path("r"), {"config.json": b"{}"}, {})
    publish_folder(desk.store, weights_path("r", 0), {WEIGHTS_FILE: files[0]}, {})
    facts = version_facts(weights_version=1, step=1, dtype="uint8", base=0, tensors=tensor_digests(new))
    publish_folder(desk.store, weights_path("r", 1), {DELTA_FILE: encode(old, new)}, facts)
    published = WeightsPublished(run="r", weights_version=1, step=1, path=weights_path("r", 1), num_bytes=1, wall_seconds=0.1)
    await desk.begin(published, step(1), step(2), END)
    await results.finish(desk.client, "r", CONFIG, QUESTIONS, await desk.follow(), desk.folder, desk.console)
    assert (desk.folder.path / "model" / WEIGHTS_FILE).read_bytes() == files[1]

    desk.store.write(f"{weights_path('r', 1)}/{DELTA_FILE}", b"damaged")
    (desk.folder.path / "model" / WEIGHTS_FILE).unlink()
    await results.finish(desk.client, "r", CONFIG, QUESTIONS, await desk.follow(), desk.folder, desk.console)
    assert "the weights were not copied here" in desk.screen.getvalue()
    assert not (desk.folder.path / "model" / WEIGHTS_FILE).exists()


async def test_weights_that_cannot_be_had_do_not_lose_the_summary(desk):
    """They are a note; the run is over and its summary is there."""
    published = WeightsPublished(run="r", weights_version=1, step=1, path="r/weights/1", num_bytes=1, wall_seconds=0.1)
    await desk.begin(published, step(1), step(2), END)
    follower = await desk.follow()
    code = await results.finish(Client(desk.bus, NoStore()), "r", CONFIG, QUESTIONS, follower, desk.folder, desk.console)

    assert code == 0
    assert json.loads((desk.folder.path / "summary.json").read_text())["steps"] == 2
    assert "the weights were not copied here" in desk.screen.getvalue()


@pytest.mark.parametrize(
    ("reason", "code"),
    [("tasks_ended", 0), ("nothing_left_to_learn", 0), ("stopped: the last 4 groups failed: no module x", 1)],
)
async def test_the_exit_code_tells_a_good_end_from_a_failure(desk, reason, code):
    """A run that learned all it could has not failed."""
    await desk.begin(step(1), step(2), END.model_copy(update={"reason": reason}))
    follower = await desk.follow()

    done = await results.finish(Client(desk.bus, NoStore()), "r", CONFIG, QUESTIONS, follower, desk.folder, desk.console)
    assert done == code


def test_a_ledger_with_right_sums_and_wrong_counts_names_the_episodes(desk):
    """Else nobody could see why it does not balance."""
    desk.console.print(ledger_table(Ledger(Account(), Account(), gaps=("g-1-0-0", "g-2-0-0"))))

    shown = desk.screen.getvalue()
    assert "DOES NOT BALANCE" in shown and "g-1-0-0" in shown and "g-2-0-0" in shown


async def test_what_a_run_is_comes_from_its_journal(desk):
    """A resumed run needs no file; a run that was asked for and never started is known as well."""
    other = CONFIG.model_copy(update={"seed": 7})
    assert await desk.client.requested("r") is None
    assert await desk.client.request_run("r", other)
    assert await desk.client.requested("r") == other
    await desk.begin()
    assert await desk.client.requested("r") == CONFIG
