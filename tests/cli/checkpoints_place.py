"""A run with checkpoints in a store, its server, and the commands that look at it."""

import asyncio
import json
from typing import NamedTuple

from typer.testing import CliRunner

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.checkpoints.checkpoint_folders import BARRIER, OPTIMIZER_FILE, checkpoint_path, checkpoints_path
from seamlessflow.cli import app
from seamlessflow.cli.run_location import RUNS, Address, Folder
from seamlessflow.client import Client
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import RolledBack, RunHeld, RunStarted, StepsCommitted, TrainerClaimed
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime.journal import Journal
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder

RUN = "demo"
CONFIG = parse_run_config(
    {
        "model": {"name": "tiny-calculator"},
        "agents": [{"env": "a", "entrypoint": "my_agent:run"}],
        "algorithm": {"steps": 9},
        "checkpoints": {"keep": 2},
    }
)
WEIGHTS, STATE = b"weights" * 100, b"state" * 10


class Told(NamedTuple):
    """A command's exit code and its words."""

    code: int
    words: str


def command(*arguments):
    """As from a shell."""
    result = CliRunner().invoke(app, [*arguments])
    if isinstance(result.exception, SeamlessFlowError):
        return Told(2, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Told(result.exit_code, result.output)


def claimed(line):
    return TrainerClaimed(run=RUN, line=line, nonce=f"n{line}", by="trainer")


def committed(step, line=1, *groups):
    return StepsCommitted(
        run=RUN, step=step, line=line, checkpoint=path_of(step, line), groups=groups, nonce=f"n{line}", account=()
    )


def rolled_back(step, line, checkpoint, *passed_over):
    return RolledBack(
        run=RUN, step=step, line=line, nonce=f"n{line}", checkpoint=checkpoint, request=f"q{line}", passed_over=passed_over
    )


def held(line, reason="the checkpoint is damaged"):
    return RunHeld(run=RUN, reason=reason, nonce=f"n{line}")


def path_of(step, line=1, attempt="a"):
    return checkpoint_path(RUN, step, line, attempt)


async def publish(client, *events):
    for spec in run_streams(RUN):
        await client.bus.ensure_stream(spec)
    begins = RunStarted(run=RUN, document=CONFIG.model_dump(mode="json"))
    await Journal(client.bus, client.store).publish_all((begins, *events))


class Place:
    """The run's folder below ``runs``, with a server that runs only while somebody looks."""

    def __init__(self, store):
        self.store, self.folder = store, Folder(RUNS / RUN)
        self.folder.announce(Address("nats://127.0.0.1:1", store.url))

    def do(self, work):
        """Something by a client, while the server runs for it."""

        async def with_client(url):
            async with Client.open(url, self.store.url) as client:
                return await work(client)

        server = EmbeddedServer(self.folder.server).start()
        try:
            return asyncio.run(with_client(server.url))
        finally:
            server.stop()

    def journal(self, *events):
        """Add events; the first time, after the run's beginning."""
        self.do(lambda client: publish(client, *events))

    def events(self, kind):
        """What the journal has of a kind."""

        async def read(client):
            return [event async for _, event in client.events(RUN) if isinstance(event, kind)]

        return self.do(read)

    def write(self, step, line=1, attempt="a", *, nonce=None, predecessor=None):
        """A complete folder."""
        facts = {"step": step, "line": line, "nonce": nonce or f"n{line}", "predecessor": predecessor, "trained": []}
        path = path_of(step, line, attempt)
        publish_folder(self.store, path, {WEIGHTS_FILE: WEIGHTS, OPTIMIZER_FILE: STATE}, facts)
        return path

    def write_earlier(self, step):
        """As a release without claims did."""
        facts = {"step": step, "line": 1, "trained": []}
        path = f"{checkpoints_path(RUN)}/{step:08d}"
        publish_folder(self.store, path, {WEIGHTS_FILE: WEIGHTS, OPTIMIZER_FILE: STATE}, facts)
        return path

    def bar(self):
        self.store.write(f"{checkpoints_path(RUN)}/{BARRIER}/{MANIFEST}", b"{}")

    def listed(self):
        """By path."""
        return {each["path"]: each for each in json.loads(command("checkpoints", "list", RUN, "--json").words)["checkpoints"]}
