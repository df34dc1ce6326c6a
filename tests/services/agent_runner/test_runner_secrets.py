"""What an agent, which has the same user as its runner, cannot read of the runner and of what it was forked from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[3]
PATH = os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "shared")))
IS_LINUX = sys.platform.startswith("linux")
pytestmark = pytest.mark.skipif(not IS_LINUX, reason="only Linux hides processes of one user from each other")

STARTS = """
import asyncio, ctypes, json, os
from seamlessflow_agent_runner import __main__ as runner

class Context:
    def __init__(self, *arguments, **more):
        pass
    async def __aenter__(self):
        prctl = ctypes.CDLL(None).prctl
        print(json.dumps({"dumpable": prctl(3, 0, 0, 0, 0), "left": [n for n in os.environ if n.startswith("SEAMLESSFLOW_")],
                          "aws": os.environ.get("AWS_SECRET_ACCESS_KEY")}), flush=True)
        os._exit(0)
    async def __aexit__(self, *error):
        pass

runner.open_context = Context
asyncio.run(runner.main())
"""
TRACES = """
import os, sys
from pathlib import Path
os.setgid(65534); os.setuid(65534)
for name in ("environ", "maps"):
    try:
        Path(f"/proc/{sys.argv[1]}/{name}").read_bytes(); print("read", name)
    except OSError:
        pass
print(Path(f"/proc/{sys.argv[1]}/statm").read_text().strip())
"""
HIDDEN = """
import os, sys, time
from seamlessflow.local.child_processes import hide_secrets, show_oneself
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
(hide_secrets if sys.argv[1] == "hidden" else show_oneself)()
print("ready", flush=True); time.sleep(60)
"""


def test_a_runner_hides_itself_and_forgets_its_variables() -> None:
    """Before it connects to anything. What the S3 client reads when it is first used stays, in an environment nobody reads."""
    environment = {
        "PYTHONPATH": PATH, "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"),
        "SEAMLESSFLOW_NKEY_SEED": "secret", "SEAMLESSFLOW_NATS_URL": "nats://u:secret@nowhere", "AWS_SECRET_ACCESS_KEY": "s3",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", STARTS], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"dumpable": 0, "left": [], "aws": "s3"}


@pytest.mark.parametrize("kind", ["hidden", "shown"])
def test_a_hidden_process_cannot_be_read_by_its_own_user(kind: str) -> None:
    """But its memory use can, which the runner's memory watch needs of its agents. Shown: what it would be otherwise."""
    process = subprocess.Popen(
        [sys.executable, "-c", HIDDEN, kind], env={"PYTHONPATH": PATH, "SECRET": "x"}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        reader = [
            sys.executable,
            "-c",
            TRACES if os.getuid() == 0 else TRACES.replace("os.setgid(65534); os.setuid(65534)", ""),
        ]
        seen = subprocess.run([*reader, str(process.pid)], capture_output=True, text=True, timeout=30, check=True).stdout
    finally:
        process.kill()
        process.wait()

    assert ("read environ" in seen) == (kind == "shown")
    assert ("read maps" in seen) == (kind == "shown")
    assert len(seen.splitlines()[-1].split()) == 7


async def test_forkservers_and_judges_are_hidden_and_agents_are_not(start_runner: Any, python_agents: Any) -> None:
    """Digits: the judge; the agent's interpreter when it imported the module (the forkserver, if forked); the agent."""
    agents = [
        python_agents("tells_dumpable", env=env, fresh=env == "fresh", reward="bad_agents:verifier_adds_dumpable")
        for env in ("forked", "fresh")
    ]
    world, _ = await start_runner(*agents)

    rewards = [(await world.run_one(episode=f"{env}-0-0", env=env)).reward for env in ("forked", "fresh")]

    assert rewards == [1, 11]
