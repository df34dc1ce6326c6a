"""The trainer's own settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from seamlessflow.settings import Settings


class TrainerSettings(Settings):
    """Read from ``SEAMLESSFLOW_*`` like the others."""

    device: str = "auto"
    """Where to compute: ``cpu``, ``cuda``, ``cuda:1``. auto: CUDA where there is one."""
    models_dir: Path = Field(default_factory=lambda: Path.cwd() / "models")
    """Base models that are prepared or made on the spot are kept here."""
