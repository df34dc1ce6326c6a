"""What every service needs to know before it can reach anything: read from ``SEAMLESSFLOW_*`` at start, once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from seamlessflow.local.instance_names import instance_name


def _host_token() -> str:
    return "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname())[:40] or "node"


def own_node(service: str) -> Callable[[], str]:
    """Default node of a service that is no device: a node of its own, so that it shares no lease with its host's device."""
    return lambda: f"{_host_token()}-{service}"


class Settings(BaseSettings):
    """Settings shared by all services. Each can be set by its upper-case name with the prefix ``SEAMLESSFLOW_``."""

    model_config = SettingsConfigDict(env_prefix="SEAMLESSFLOW_", extra="ignore", use_attribute_docstrings=True)

    nats_url: str = "nats://127.0.0.1:4222"
    """Where JetStream is. A service waits for it and logs that it waits."""
    store_url: str = Field(default_factory=lambda: f"file://{Path.cwd() / 'runs' / 'store'}")
    """Any fsspec URL all services can reach: weights, checkpoints, large messages."""
    store_call_seconds: float = Field(default=30.0, gt=0)
    """Longest that one call to the store may take, attempts that its client makes by itself included; a second more for each
    MB it moves. Then it is cancelled, and tried again or given up by whoever made it."""
    node: str = Field(default_factory=_host_token)
    """The machine or slice of it this process runs on; processes that share a device share the node."""
    instance: str = Field(default_factory=lambda: instance_name(_host_token(), os.getpid()))
    """This very process; new at each start (``instances``)."""
    work_dir: Path = Field(default_factory=lambda: Path.cwd() / "runs" / "work")
    """Local scratch: device locks, fetched weights, agents' folders."""
    model_cache: Path = Field(default_factory=lambda: Path.home() / ".cache" / "seamlessflow" / "models")
    """Where prepared base models are kept, once for all runs of this user."""
    nkey_seed: str | None = None
    """Seed of the service's nkey user, where the server asks for one."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_json: bool | None = None
    """None: JSON unless the output is a terminal."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where Prometheus may read this process's metrics; each process of a machine needs a port of its own. None: nowhere."""
    metrics_host: str = "127.0.0.1"
    """The address that port is opened on. 0.0.0.0: whoever reaches this machine."""


def forget_environment() -> None:
    """Take our variables out of this process's environment, once settings are read: nothing started later inherits them.

    ``AWS_*`` stay: the S3 client reads them when the store is first used, and again when its credentials run out.
    """
    for name in [name for name in os.environ if name.startswith("SEAMLESSFLOW_")]:
        del os.environ[name]
