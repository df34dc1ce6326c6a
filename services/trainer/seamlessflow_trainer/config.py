"""The trainer's own settings."""

from __future__ import annotations

from seamlessflow.config.node_settings import DeviceSettings


class TrainerSettings(DeviceSettings):
    """Read from ``SEAMLESSFLOW_*`` like the others."""

    device: str = "auto"
    """Where to compute: ``cpu``, ``cuda``, ``cuda:1``. auto: CUDA where there is one."""
