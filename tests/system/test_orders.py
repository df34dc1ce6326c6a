"""Tags and orders by hand while a real run goes on: the command, all five services, and a second process under one name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from seamlessflow.contracts import EpisodeOpened, GenerationRequested, Role, RoleAssigned

from .conftest import ROOT, environment, until
from .short_runs import Journal, short_run

pytestmark = [pytest.mark.system, pytest.mark.slow]

RUN = "ordered"


async def test_tags_and_drains_are_obeyed_while_a_run_goes_on(train, seamlessflow, tmp_path, monkeypatch):
    """It waits for a tag and says who could have it; a drained node gets nothing; whatever was ordered, no token is lost."""
    monkeypatch.chdir(tmp_path)
    config = short_run(tmp_path, algorithm={"steps": 60})
    config.write_text(config.read_text().replace('env = "calculator"', 'env = "calculator"\ntag = "rollout+h800"'))
    training = train(config, RUN, "--slices", "2")
    until(lambda: "seamlessflow tag local-0 h800" in seamlessflow("status", RUN).stdout, 60)

    assert "+h800 (by hand)" in seamlessflow("tag", "local-0", "h800").stdout
    assert seamlessflow("tag", "local-1", "h800").returncode == 0
    until(lambda: "; step 0 " not in seamlessflow("status", RUN).stdout, 120)
    double = start_another("local-1", tmp_path)
    assert double.returncode == 1
    assert "node local-1 has a rollout-worker already" in double.stderr and "SEAMLESSFLOW_NODE of its own" in double.stderr

    assert seamlessflow("drain", "local-0").returncode == 0
    until(lambda: "nothing" in seamlessflow("why", "local-0").stdout.splitlines()[0], 10)
    why = seamlessflow("why", "local-0").stdout
    assert "drained by hand" in why and "seamlessflow drain --undo local-0" in why
    nodes = {node["node"]: node for node in json.loads(seamlessflow("nodes", "--json").stdout)}
    assert nodes["local-0"]["drained"] and nodes["local-1"]["lease"]["tags"] == ["h800+rollout"]

    assert seamlessflow("stop", RUN).returncode == 0
    summary = training.finish(300)
    journal = await Journal.of(RUN)
    assert summary["reason"] == "stopped" and journal.ledger.tokens.trained > 0
    assert journal.ledger.balanced and journal.ledger.tokens.in_flight == 0
    assert {event.tag for event in journal.all(EpisodeOpened)} == {"h800+rollout"}
    assert {event.tag for event in journal.all(GenerationRequested)} == {"h800+rollout"}
    told = [event for event in journal.all(RoleAssigned) if event.node == "local-0"]
    assert (told[-1].role, told[-1].reason) == (Role.IDLE, "drained by hand")


def start_another(node: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A rollout-worker under the name of one that is there."""
    address = json.loads((folder / "runs" / RUN / "up.json").read_text())
    settings = {
        "SEAMLESSFLOW_NODE": node,
        "SEAMLESSFLOW_NATS_URL": address["nats_url"],
        "SEAMLESSFLOW_STORE_URL": address["store_url"],
        "SEAMLESSFLOW_WORK_DIR": str(folder / "elsewhere"),
    }
    return subprocess.run(
        [sys.executable, "-m", "seamlessflow_rollout_worker"],
        cwd=ROOT, env={**environment(), **settings}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
