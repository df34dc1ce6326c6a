"""A run fed by its users, as the README tells: by the command, by any NATS client, and from Python."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import nats
import pytest

from .conftest import ROOT, environment, until

pytestmark = [pytest.mark.system, pytest.mark.slow]

DEMO = ROOT / "deploy" / "demo"
README = (ROOT / "README.md").read_text().partition("### Publish tasks to the queue")[2].partition("\n### ")[0]
BY_NATS = re.findall(r"pub (sf\.demo\.\S+) '(\{.*\})'", README)
IN_PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
WRONG = [
    ("sf.demo.task.calculator.w1", '{"task": "w1", "env": '),
    ("sf.demo.task.nobody.w2", '{"task": "w2", "env": "nobody", "prompt": "What is 1+1?"}'),
]


async def test_a_run_does_what_is_published_to_it(up, train, seamlessflow, tmp_path):
    """Four tasks from three kinds of publishers are two steps; what is no task becomes a dead letter and stops nothing."""
    assert len(BY_NATS) == len(IN_PYTHON) == 1
    training = train(DEMO / "queue.toml", "demo", "--nats", "runs/up")
    tasks = ("submit", str(DEMO / "tasks.jsonl"), "--run", "demo", "--nats", "runs/up")
    until(lambda: seamlessflow(*tasks).returncode == 0, 120)

    client = await nats.connect(json.loads((tmp_path / "runs" / "up" / "up.json").read_text())["nats_url"])
    for subject, payload in WRONG + BY_NATS:
        await client.publish(subject, payload.encode())
    await client.drain()
    subprocess.run([sys.executable, "-c", IN_PYTHON[0]], cwd=tmp_path, env=environment(), timeout=60, check=True)

    summary = training.finish(300)
    assert (summary["reason"], summary["steps"]) == ("completed", 2)
    assert summary["groups"]["admitted"] == 4
    assert summary["dead_letters"] == 2
    assert summary["ledger"]["tokens"]["in_flight"] == 0
    assert seamlessflow("ledger", "demo").returncode == 0
    said = seamlessflow("status", "demo").stdout
    assert "nobody" in said and "w1" in said

    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0
