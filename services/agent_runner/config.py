"""Settings of the agent-runner alone; each is ``SEAMLESSFLOW_<NAME>`` in the environment."""

from __future__ import annotations

from pydantic import Field

from seamlessflow.contracts import Service
from seamlessflow.settings import Settings, own_node


class RunnerSettings(Settings):
    """What the agent-runner wants to know beyond the settings of every service."""

    node: str = Field(default_factory=own_node(Service.AGENT_RUNNER))
    """A node of its own: it uses no device."""
    gateway_host: str = "127.0.0.1"
    """Where the endpoint for agents listens. Agents run on this machine, so loopback is right unless they are in containers."""
    gateway_port: int = Field(default=0, ge=0, le=65535)
    """Its port. 0: any free one, which is what agents are told."""
    verifier_seconds: float = Field(default=30.0, gt=0)
    """A verifier that has not answered for this long counts as hung: it is killed and started anew."""
    verifier_start_seconds: float = Field(default=60.0, gt=0)
    """How long importing a verifier may take."""
    kill_grace_seconds: float = Field(default=2.0, ge=0)
    """Between SIGTERM and SIGKILL for an agent at its deadline."""
