"""Nodes of services that nobody named: one of each on a host serves a run."""

from __future__ import annotations

import pytest

from seamlessflow.contracts import NodeStatus, Role, Service
from seamlessflow_agent_runner.config import RunnerSettings
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_scheduler.config import SchedulerSettings
from seamlessflow_scheduler.fleet_state import FleetState
from seamlessflow_scheduler.placement.plan import next_plan
from seamlessflow_scheduler.policy import Demand
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trajectory_manager.config import ManagerSettings

KINDS = {
    Service.AGENT_RUNNER: (RunnerSettings, "serve"),
    Service.ROLLOUT_WORKER: (WorkerSettings, "rollout"),
    Service.TRAJECTORY_MANAGER: (ManagerSettings, "serve"),
    Service.SCHEDULER: (SchedulerSettings, "schedule"),
    Service.TRAINER: (TrainerSettings, "train"),
}


@pytest.fixture(autouse=True)
def unnamed(monkeypatch):
    monkeypatch.delenv("SEAMLESSFLOW_NODE", raising=False)


def test_one_of_each_service_on_one_host_makes_a_whole_fleet():
    """./task run:<service> five times: the run lacks nothing, and worker and trainer share the device."""
    fleet = FleetState(grace_seconds=10.0)
    fleet.observe([_status(service) for service in KINDS], now=1.0)
    plan = next_plan(fleet.nodes({}, {}), {}, [Demand("r1", "multiplexed", envs=("single",), num_shards=1)], 1.0)

    assert not plan.waits["r1"]
    assert sorted(change.role for change in plan.changes) == [Role.ROLLOUT, Role.SERVE, Role.SERVE]
    assert WorkerSettings().node == TrainerSettings().node


def _status(service: Service) -> NodeStatus:
    settings, capability = KINDS[service]
    return NodeStatus(node=settings().node, service=service, instance="i", capabilities=(capability,), pid=1)


@pytest.mark.parametrize("service", KINDS)
def test_a_name_that_was_given_is_the_node(service, monkeypatch):
    """Whatever the service."""
    monkeypatch.setenv("SEAMLESSFLOW_NODE", "given")

    assert KINDS[service][0]().node == "given"
