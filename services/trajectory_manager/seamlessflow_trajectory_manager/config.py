"""Settings of the trajectory-manager alone."""

from __future__ import annotations

from pydantic import Field

from seamlessflow.config.settings import Settings, own_node
from seamlessflow.contracts import Service


class ManagerSettings(Settings):
    """The shared ones, but for the node."""

    node: str = Field(default_factory=own_node(Service.TRAJECTORY_MANAGER))
    """A node of its own: it uses no device."""
