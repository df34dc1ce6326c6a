"""Logs are events with fields: pretty on a terminal, one JSON object a line elsewhere."""

from __future__ import annotations

import logging
import sys

import structlog

from .contracts import Service
from .settings import Settings


def configure_logging(settings: Settings, service: Service) -> None:
    """Set up structlog for this process and bind who speaks. Call once, before anything is logged."""
    as_json = settings.log_json if settings.log_json is not None else not sys.stderr.isatty()
    level = logging.getLevelNamesMapping().get(settings.log_level.upper(), logging.INFO)
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
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
