"""Settings of the scheduler alone."""

from __future__ import annotations

from pydantic import Field

from seamlessflow.config.settings import Settings, own_node
from seamlessflow.contracts import Service
from seamlessflow.runtime.presence import GAP_SECONDS


class SchedulerSettings(Settings):
    """``SEAMLESSFLOW_TICK_SECONDS`` and so on."""

    node: str = Field(default_factory=own_node(Service.SCHEDULER))
    """A node of its own: it uses no device."""
    tick_seconds: float = 0.5
    """Seconds between reads of the nodes, and between ticks when no event comes."""
    leader_ttl_seconds: int = 4
    """A leader that did not renew for this long is replaced."""
    gone_seconds: float = 10.0
    """A process whose presence ended keeps its roles this much longer: restarts move nothing."""
    quiet_seconds: float = Field(default=2.5, gt=GAP_SECONDS)
    """A trajectory-manager that did not renew its presence for this long loses its shards to others, if there are any."""
    trainer_away_seconds: float = 60.0
    """A run that is to stop waits this long for a trainer that is away, to commit its steps."""
    queue_grace_seconds: float = 5.0
    """Queues of an ended run stay this long, so that all services see the end first."""
