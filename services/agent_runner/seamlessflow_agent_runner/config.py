"""Settings of the agent-runner alone; each is ``SEAMLESSFLOW_<NAME>`` in the environment."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from seamlessflow.config.node_settings import TagSettings
from seamlessflow.config.settings import own_node
from seamlessflow.contracts import Service


class RunnerSettings(TagSettings):
    """The agent-runner's own settings, beside those of every service."""

    node: str = Field(default_factory=own_node(Service.AGENT_RUNNER))
    """A node of its own: it uses no device."""
    gateway_host: str = "127.0.0.1"
    """Where the endpoint for agents listens. Agents run on this machine, so loopback is right unless they are in containers."""
    gateway_port: int = Field(default=0, ge=0, le=65535)
    """Its port. 0: any free one, which is what agents are told."""
    gateway_only: bool = False
    """True (or ``--gateway-only``): start no agents, serve only those that run elsewhere."""
    gateway_token: str | None = Field(default=None, repr=False)
    """Secret with which agents that run elsewhere open episodes. None: only a gateway on a loopback address opens any."""
    gateway_url: str | None = None
    """Where agents elsewhere reach the gateway, such as ``https://agents.example``. None: the address they called it by.
    One that is not this machine's needs a token."""
    verifier_seconds: float = Field(default=30.0, gt=0)
    """A verifier that has not answered for this long counts as hung: it is killed and started anew."""
    verifier_start_seconds: float = Field(default=60.0, gt=0)
    """How long importing a verifier may take."""
    kill_grace_seconds: float = Field(default=2.0, ge=0)
    """Between SIGTERM and SIGKILL for an agent at its deadline."""

    @field_validator("gateway_token", "gateway_url")
    @classmethod
    def _empty_is_none(cls, given: str | None) -> str | None:
        return given or None  # deployments hand an unset variable on as an empty one

    @model_validator(mode="after")
    def _gateway_is_a_node(self) -> RunnerSettings:
        """A gateway and an agent-runner of one host are two nodes, unless ``node`` is set."""
        if self.gateway_only and "node" not in self.model_fields_set:
            self.node = own_node("gateway")()
        return self
