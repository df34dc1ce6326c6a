"""What a rollout-worker may be told beyond the shared settings; each by ``SEAMLESSFLOW_*``."""

from __future__ import annotations

from seamlessflow.device_settings import DeviceSettings


class WorkerSettings(DeviceSettings):
    """Settings of one rollout-worker."""

    torch_threads: int | None = None
    """Threads of the engine's arithmetic. None: all cores."""
    stall_seconds: float = 180.0
    """An engine that holds generations and samples nothing for this long counts as dead; the process exits."""
    fetch_seconds: float = 900.0
    """How long one version of the weights may take to come from the store."""
