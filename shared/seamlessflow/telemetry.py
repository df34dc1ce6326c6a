"""Logs are events with fields: pretty on a terminal, one JSON object a line elsewhere. Metrics are counts, for Prometheus.

The facts of a run are in its journal; these metrics tell whether a process is well. Without ``metrics_port`` they cost an
addition each, and the package prometheus-client is not needed.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from .config.settings import Settings
from .contracts import Service
from .errors import ConfigError

COUNTED = {
    "events_said": "Events stored, by kind; repetitions of what was stored before included.",
    "events_handled": "Deliveries that were handled well, by kind of event.",
    "events_dead": "Deliveries that became dead letters.",
    "forks": "Calls that could not go on from the exact tokens of an earlier turn, by cause; repeated deliveries included.",
    "reprefilled_tokens": "Tokens that engines had to be fed again because of forks, by cause.",
    "generations_taken": "Generations that came to a worker as the owner of their affinity bucket, as a backup, or lent.",
    "generations_let_go": "Generations that went on under the newest weights, since nobody had those that their episode keeps.",
    "prompt_tokens": "Tokens that sequences had when an engine began with them, or began again.",
    "cached_prompt_tokens": "Those of them that its prefix cache held.",
    "answers_unlike_their_deltas": "Answers whose text does not begin with what was streamed of it.",
}
_counts: Counter[tuple[str, str]] = Counter()


def configure_logging(settings: Settings, service: Service) -> None:
    """Set up structlog for this process and bind who speaks. Call once, before anything is logged."""
    as_json = settings.log_json if settings.log_json is not None else not sys.stderr.isatty()
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    # Without what local variables hold: some are keys.
    pretty = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    renderer = structlog.processors.JSONRenderer() if as_json else pretty
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if as_json:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service.value, instance=settings.instance)


def count(name: str, kind: str = "", number: int = 1) -> None:
    """Add to a metric of COUNTED."""
    _counts[name, kind] += number


def serve_metrics(settings: Settings, service: Service, connected: Callable[[], bool]) -> Callable[[], None]:
    """Let Prometheus read ``http://<metrics_host>:<metrics_port>/metrics``; returns how to end that. Raises ConfigError.

    Beside COUNTED: whether the bus is connected, when the process started, and prometheus-client's own process metrics
    (memory, CPU, descriptors). The server is a daemon thread.
    """
    if settings.metrics_port is None:
        return lambda: None
    try:
        import prometheus_client
    except ImportError as wrong:
        raise ConfigError("SEAMLESSFLOW_METRICS_PORT needs the extra 'metrics': pip install seamlessflow[metrics]") from wrong
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    registry.register(_Collector(settings, service, connected))
    address = f"{settings.metrics_host}:{settings.metrics_port}"
    try:
        server, thread = prometheus_client.start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as wrong:
        raise ConfigError(f"metrics cannot be served on {address} ({wrong.strerror}); set SEAMLESSFLOW_METRICS_PORT") from wrong

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


class _Collector:
    """Reads the counts when Prometheus asks."""

    def __init__(self, settings: Settings, service: Service, connected: Callable[[], bool]) -> None:
        self._labels = {"service": service.value, "node": settings.node}
        self._connected, self._began = connected, time.time()

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        names, values = list(self._labels), list(self._labels.values())
        for name, what in COUNTED.items():
            family = CounterMetricFamily(f"seamlessflow_{name}", what, labels=[*names, "kind"])
            for (counted, kind), number in list(_counts.items()):
                if counted == name:
                    family.add_metric([*values, kind], number)
            yield family
        connected = GaugeMetricFamily("seamlessflow_bus_connected", "1 while the nats-server is there.", labels=names)
        connected.add_metric(values, float(self._connected()))
        yield connected
        began = GaugeMetricFamily("seamlessflow_start_time_seconds", "Unix time at which the service started.", labels=names)
        began.add_metric(values, self._began)
        yield began
