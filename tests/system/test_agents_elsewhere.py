"""A program that the system did not start trains a model: through a gateway alone, over HTTP, and through its death."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w

from seamlessflow.contracts import DeadLetter, EpisodeEnded, EpisodeStarted, EpisodeStatus

from .conftest import environment, until
from .short_runs import HELD_OUT, STEPS, Journal, short_run

pytestmark = [pytest.mark.system, pytest.mark.slow]

RUN = "elsewhere"
TOKEN = "only the test knows it"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a Python module beside the test; ended with it."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(name: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.out").open("ab") as output:
            argv = [sys.executable, "-m", *arguments]
            process = subprocess.Popen(
                argv, cwd=tmp_path, env={**environment(), **variables}, stdout=output, stderr=subprocess.STDOUT
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        process.wait(30)


async def test_a_program_elsewhere_trains_the_model(up, train, start, tmp_path, monkeypatch):
    """Steps are taken, every episode ran at the gateway; killed in the middle, it loses what was open and nothing else."""
    monkeypatch.chdir(tmp_path)
    address = json.loads((tmp_path / "runs" / "up" / "up.json").read_text())
    gateway_settings = {
        "SEAMLESSFLOW_NATS_URL": address["nats_url"],
        "SEAMLESSFLOW_STORE_URL": address["store_url"],
        "SEAMLESSFLOW_GATEWAY_PORT": str(free_port()),
        "SEAMLESSFLOW_GATEWAY_TOKEN": TOKEN,
    }
    gateway = start("gateway", "seamlessflow_agent_runner", "--gateway-only", **gateway_settings)
    where = f"http://127.0.0.1:{gateway_settings['SEAMLESSFLOW_GATEWAY_PORT']}"
    training = train(run_file(tmp_path), RUN, "--nats", "runs/up")
    ours = opened(where)
    program = start("program", "deploy.demo.elsewhere", where, "--run", RUN, "--workers", "4", SEAMLESSFLOW_GATEWAY_TOKEN=TOKEN)
    said = tmp_path / "program.out"
    until(lambda: said.read_text().count("'completed'") >= HELD_OUT - 1, 240)
    gateway.kill()  # while an episode is open without which the evaluation cannot end
    gateway.wait()
    start("gateway", "seamlessflow_agent_runner", "--gateway-only", **gateway_settings)

    summary = training.finish(400)

    assert (summary["reason"], summary["steps"]) == ("completed", STEPS)
    assert program.wait(90) == 0, said.read_text()[-3000:]
    assert report(where, ours, {"answer": "4"}).status_code == 401
    journal = await Journal.of(RUN)
    ends = {end.episode: end.status for end in journal.all(EpisodeEnded)}
    assert set(ends.values()) <= {EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED, EpisodeStatus.RUNNER_LOST}
    assert ends[ours["episode"]] is EpisodeStatus.RUNNER_LOST
    assert len({started.runner for started in journal.all(EpisodeStarted)}) == 2  # the gateway and its successor
    assert summary["evaluation"]["before"]["num_episodes"] == HELD_OUT
    assert journal.ledger.balanced and journal.ledger.tokens.trained > 0
    assert journal.all(DeadLetter) == []


def opened(where: str) -> dict[str, Any]:
    """The first episode there is, in our own hands."""
    answers: list[httpx.Response] = []

    def is_there() -> bool:
        with contextlib.suppress(httpx.TransportError):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answers.append(httpx.post(f"{where}/episodes", json={"run": RUN}, headers=headers, timeout=60))
        return bool(answers) and answers[-1].status_code == 201

    until(is_there, 120)
    episode: dict[str, Any] = answers[-1].json()
    return episode


def report(where: str, episode: dict[str, Any], what: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    return httpx.post(f"{where}/episodes/{episode['episode']}/reward", json=what, headers=headers, timeout=60)


def run_file(folder: Path) -> Path:
    path = short_run(folder)
    document = tomllib.loads(path.read_text())
    document["agents"] = [{"env": "calculator", "external": True, "reward": "deploy.demo.verifiers:last_number"}]
    path.write_text(tomli_w.dumps(document))
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
