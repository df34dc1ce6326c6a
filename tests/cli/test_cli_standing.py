"""``status`` says the truth about a run, whoever is alive."""

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.cli.run_location import Address
from seamlessflow.cli.status import as_journal, how_to_go_on, is_served, standing
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.contracts import NodeStatus, Role, RunEnded, RunHeld, RunPhase, RunState
from seamlessflow.contracts.routes import NODES_BUCKET
from seamlessflow.store.large_payloads import Store

END = RunEnded(run="r", reason="tasks_ended", steps=2)


def state(phase, reason=""):
    return RunState(phase=phase, reason=reason, requested_at=0.0)


@pytest.mark.parametrize(
    ("ended", "said", "served", "stands"),
    [
        (END, state(RunPhase.RUNNING), True, "ended (tasks_ended)"),
        (END, None, False, "ended (tasks_ended)"),
        (None, state(RunPhase.REFUSED, "no such key"), True, "refused: no such key"),
        (None, state(RunPhase.QUEUED, "a node that can train"), True, "queued, waits: a node that can train"),
        (None, state(RunPhase.QUEUED), True, "queued"),
        (None, None, True, "queued: the scheduler has not begun it"),
        (None, state(RunPhase.RUNNING), True, "running"),
        (None, state(RunPhase.RUNNING, "tasks"), True, "running, waits: tasks"),
        (None, state(RunPhase.RUNNING, "tasks"), False, "suspended: nobody serves it; do this"),
        (None, state(RunPhase.QUEUED, "a node"), False, "suspended before it began: nobody serves it; do this"),
        (None, state(RunPhase.HELD, "damaged"), True, "held: damaged"),
        (None, state(RunPhase.HELD, "damaged"), False, "held: damaged"),
        (END, state(RunPhase.HELD, "damaged"), True, "ended (tasks_ended)"),
        (None, None, False, "suspended before it began: nobody serves it; do this"),
    ],
)
def test_where_a_run_stands(ended, said, served, stands):
    """An end is an end; the word of a scheduler that is gone counts for nothing, but that the run is held."""
    assert standing(ended, said, served=served, how="do this") == stands


def test_the_journal_tells_whether_a_run_is_held():
    """Before the scheduler has come to it, and after one that is gone."""
    held = RunHeld(run="r", reason="damaged", nonce="n")

    assert as_journal(None, held) == state(RunPhase.HELD, "damaged")
    assert as_journal(state(RunPhase.RUNNING, "tasks"), held) == state(RunPhase.HELD, "damaged")
    assert as_journal(state(RunPhase.HELD, "damaged"), None) == state(RunPhase.RUNNING)
    assert as_journal(state(RunPhase.QUEUED, "a node"), None) == state(RunPhase.QUEUED, "a node")
    assert as_journal(None, None) is None


async def test_a_run_is_served_while_a_scheduler_is_there(tmp_path):
    """Others cannot make it go on."""
    bus = MemoryBus()
    client, bucket = Client(bus, Store(f"file://{tmp_path}")), await bus.kv(NODES_BUCKET)

    async def comes(service):
        status = NodeStatus(node="n", service=service, instance="i", pid=1, capabilities=(Role.SERVE,))
        await bucket.put(f"n.{service}", pack_record(status))

    assert not await is_served(client)
    await comes("trainer")
    assert not await is_served(client)
    await comes("scheduler")
    assert await is_served(client)


def test_how_a_run_goes_on_depends_on_where_it_lives():
    """Here: resume it. Elsewhere: its services. Here and alive: their logs say why they are not there."""
    assert how_to_go_on("r", None, ".venv/bin/seamlessflow") == "go on with: .venv/bin/seamlessflow train --resume r"
    assert "seamlessflow up --nats" in how_to_go_on("r", Address("nats://h:1", None, elsewhere=True), "seamlessflow")
    assert "runs/r/logs says why" in how_to_go_on("r", Address("nats://h:1", None, pid=1), "seamlessflow")
