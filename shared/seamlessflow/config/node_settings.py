"""What a node with a device announces: its operator's tags, and its hardware as configured or detected."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from seamlessflow.contracts import Hardware, Service
from seamlessflow.contracts.tags import ROLES, component

from .settings import Settings

_CUDA_DRIVER = Path("/proc/driver/nvidia/gpus")
"""There is one entry in it for each GPU: reason enough to load torch and ask, and none where it is missing."""


class TagSettings(Settings):
    """Settings of the services whose nodes may have tags."""

    tags: Annotated[tuple[str, ...], NoDecode] = ()
    """What this node has besides what it can do, with commas between: ``h800,prefill``. Work may ask for it (``agents.tag``,
    ``agents.needs``)."""

    @field_validator("tags", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given

    @field_validator("tags")
    @classmethod
    def _are_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if roles := [tag for tag in tags if tag in ROLES]:
            raise ValueError(f"{', '.join(roles)} is announced by the service itself")
        return tuple(dict.fromkeys(component(tag) for tag in tags))

    def announced(self, *roles: str) -> tuple[str, ...]:
        """All tags of a process that can play these roles."""
        return (*roles, *self.tags)


class DeviceSettings(TagSettings):
    """Settings of the services that use a device."""

    model_config = SettingsConfigDict(env_nested_delimiter="__")

    hardware: Hardware = Field(default_factory=Hardware)
    """What cannot be found out here: ``SEAMLESSFLOW_HARDWARE__FLOPS=9.9e14``, ``__BANDWIDTH_BYTES``; also ``__DEVICE`` and
    ``__MEMORY_BYTES``, instead of what is found."""

    def found_hardware(self, device: str = "auto") -> Hardware:
        """What was told, and of the rest what can be found out; 0 stays for what is not known."""
        told = {name: value for name, value in self.hardware.model_dump().items() if value}
        return Hardware.model_validate({**found(device).model_dump(), **told})


def found(device: str = "auto") -> Hardware:
    """The device that torch would use, or this machine's processor and memory."""
    if device != "cpu" and _CUDA_DRIVER.is_dir() and any(_CUDA_DRIVER.iterdir()):
        import torch

        if torch.cuda.is_available():
            asked = torch.cuda.get_device_properties(device if device.startswith("cuda") else "cuda")
            return Hardware(device=asked.name, memory_bytes=float(asked.total_memory))
    return Hardware(device="cpu", memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))


# The hardware of a node, merged from the reports of its processes. Pure.
#
# Always true: the order of the reports does not matter. What is true of a device is so for whoever
# uses it, so it may be told to either process; where both know a fact, the rollout-worker's counts.


_FIRST = (Service.ROLLOUT_WORKER.value, Service.TRAINER.value)


def hardware_of(reports: Mapping[str, Hardware]) -> Hardware | None:
    """Each fact from the first process that knows it. ``reports``: by service. None: no report."""
    if not reports:
        return None
    services = sorted(reports, key=lambda service: (_FIRST.index(service) if service in _FIRST else len(_FIRST), service))
    facts = [reports[service].model_dump() for service in services]
    return Hardware.model_validate({name: next((f[name] for f in facts if f[name]), facts[0][name]) for name in facts[0]})
