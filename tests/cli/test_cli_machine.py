"""Which services one machine runs, and on which nodes."""

from __future__ import annotations

from pathlib import Path

from seamlessflow.local.services import Machine, service_children


def nodes(engine: str, slices: int) -> dict[str, str]:
    machine = Machine("nats://127.0.0.1:1", "file:///store", Path("work"), Path("logs"))
    return {child.name: child.env["SEAMLESSFLOW_NODE"] for child in service_children(machine, slices=slices, engine=engine)}


def test_each_slice_has_a_rollout_worker_and_the_last_one_the_trainer() -> None:
    """So that the trainer's slice samples between steps."""
    found = nodes("transformers", 2)

    assert (found["rollout-worker-0"], found["rollout-worker-1"], found["trainer"]) == ("local-0", "local-1", "local-1")
    assert nodes("transformers", 1)["trainer"] == "local-0"


def test_servers_of_a_remote_engine_are_one_workers_and_go_on_sampling_while_the_trainer_steps() -> None:
    """Two workers would load weights under each other's requests; and a step here takes nothing from servers elsewhere."""
    for slices in (1, 2, 4):
        found = nodes("remote", slices)

        assert [name for name in found if name.startswith("rollout-worker")] == ["rollout-worker-0"]
        assert found["trainer"] != found["rollout-worker-0"]
