"""Settings of the trajectory-manager alone."""

from __future__ import annotations

from pydantic import Field

from seamlessflow.contracts import Service
from seamlessflow.settings import Settings, own_node


class ManagerSettings(Settings):
    """The shared ones, but for the node."""

    node: str = Field(default_factory=own_node(Service.TRAJECTORY_MANAGER))
    """A node of its own: it uses no device."""
