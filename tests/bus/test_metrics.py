"""What Prometheus may read of a process."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.bus.nats_server import free_port
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import RunStarted, Service
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import ConfigError
from seamlessflow.runtime import make_context
from seamlessflow.telemetry import serve_metrics


def settings_with(tmp_path: Path, **given: Any) -> Settings:
    return Settings(store_url="memory://", node="n1", work_dir=tmp_path, **given)


async def test_prometheus_reads_what_was_said_and_whether_the_bus_is_there(tmp_path: Path) -> None:
    """With the labels of the service; nothing listens any more once it was ended."""
    pytest.importorskip("prometheus_client")
    settings = settings_with(tmp_path, metrics_port=free_port())
    context = make_context(Service.TRAINER, settings, MemoryBus(), capabilities=())
    for stream in run_streams("r1"):
        await context.bus.ensure_stream(stream)
    end = serve_metrics(settings, Service.TRAINER, lambda: context.bus.connected)
    url = f"http://127.0.0.1:{settings.metrics_port}/metrics"

    before = value_of(read(url), 'seamlessflow_events_said_total{kind="RunStarted",node="n1",service="trainer"}')
    await context.journal.publish(RunStarted(run="r1", document={}))
    text = read(url)
    end()

    assert value_of(text, 'seamlessflow_events_said_total{kind="RunStarted",node="n1",service="trainer"}') == before + 1
    assert value_of(text, 'seamlessflow_bus_connected{node="n1",service="trainer"}') == 1
    assert value_of(text, "process_resident_memory_bytes") > 1e6
    with pytest.raises(OSError):
        read(url)


def test_a_metrics_port_in_use_is_named(tmp_path: Path) -> None:
    """The message says which setting to change."""
    pytest.importorskip("prometheus_client")
    settings = settings_with(tmp_path, metrics_port=free_port())
    end = serve_metrics(settings, Service.TRAINER, lambda: True)
    try:
        with pytest.raises(ConfigError, match="SEAMLESSFLOW_METRICS_PORT"):
            serve_metrics(settings, Service.TRAINER, lambda: True)
    finally:
        end()


def test_without_a_port_nothing_is_served(tmp_path: Path) -> None:
    """And its end does nothing."""
    serve_metrics(settings_with(tmp_path), Service.TRAINER, lambda: True)()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def value_of(text: str, sample: str) -> float:
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(sample)), 0.0)
