"""A runner's process half, to be killed by a test: starts agents, prints their process ids, and waits for ever."""

import asyncio
import sys
import tempfile
from pathlib import Path

from seamlessflow_agent_runner.episodes.agent_launch import BARE, base_environment
from seamlessflow_agent_runner.episodes.deadline import OwnTime
from seamlessflow_agent_runner.processes.agent_process import AgentLimits, AgentProcess
from seamlessflow_agent_runner.processes.forkserver_client import ForkserverKind, ForkserverPool, Launch
from seamlessflow_agent_runner.processes.memory_limit import MemoryWatch

HERE = Path(__file__).parent
SHELL = ("sh", "-c", "setsid sleep 1000 & sleep 1000 & exec sleep 1000")


async def main() -> None:
    forkservers = ForkserverPool()
    environment = base_environment({"PYTHONPATH": str(HERE)}, importing=True)
    kinds = {"function": ForkserverKind("bad_agents:hangs", tuple(environment.items())), "shell": BARE}
    agents = []
    for name, kind in kinds.items():
        home = Path(tempfile.mkdtemp(dir=sys.argv[1]))
        (home / "task.json").write_text("{}")
        launch = Launch(
            name=name,
            argv=SHELL if name == "shell" else None,
            keep_result=name == "function",
            cwd=str(home),
            environment={**environment, "SEAMLESSFLOW_TASK": str(home / "task.json")},
            memory_bytes=1 << 30,
        )
        process = AgentProcess(AgentLimits(1000, 1000, 1 << 30, 1 << 20), MemoryWatch(), OwnTime())
        agents.append(asyncio.create_task(process.run(await forkservers.forkserver(kind), launch)))
    await asyncio.gather(*agents)


asyncio.run(main())
