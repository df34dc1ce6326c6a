"""For all tests: property tests have no deadline, because machines that run tests are shared; a real nats-server."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from seamlessflow.bus.nats_server import EmbeddedServer, find_binary
from seamlessflow.errors import ConfigError

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

# Output is compared word by word. pytest itself has looked already; rich, typer and go-task look at these later.
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["NO_COLOR"] = "1"

_configure = structlog.configure


def _configure_uncached(**given: Any) -> None:
    """A service that starts inside a test must not keep the loggers of modules for itself: later tests read what they say."""
    _configure(**{**given, "cache_logger_on_first_use": False})


structlog.configure = _configure_uncached


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A service that starts inside a test logs to that test's standard error, which is closed afterwards."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first: they take longest, and beside them one process does all the rest."""
    items.sort(key=lambda item: "system" not in item.path.parts)


@pytest.fixture(scope="session")
def nats_binary() -> str:
    """A laptop without nats-server skips; CI must have it."""
    try:
        return find_binary()
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def own_server(nats_binary: str, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that the test may kill."""
    server = EmbeddedServer(tmp_path / "nats").start()
    yield server
    server.kill()
