"""The outermost lines of every service: its loop, and one line instead of a traceback for what a person can put right."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine

from pydantic import ValidationError

from seamlessflow.contracts import Service
from seamlessflow.errors import ConfigError


def run_service(service: Service, main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Until ``main`` ends. Exits with 1 and a line for settings that cannot be used, with 130 on Ctrl-C before it is up."""
    try:
        _run(main())
    except ConfigError as wrong:
        sys.exit(f"{service.value} cannot start: {wrong}")
    except ValidationError as wrong:
        if not wrong.title.endswith("Settings"):  # a mistake of ours
            raise
        sys.exit(f"{service.value} cannot start:\n{_settings(wrong)}")
    except KeyboardInterrupt:  # while it waits for its server; later it is a signal to leave in order
        sys.exit(130)


def _run(main: Coroutine[None, None, None]) -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)


def _settings(wrong: ValidationError) -> str:
    """A line for each setting, by the variable it is read from. What was given is not repeated: it may be a secret."""
    return "\n".join(f"  SEAMLESSFLOW_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in wrong.errors())
