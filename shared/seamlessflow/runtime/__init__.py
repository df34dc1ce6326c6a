"""What all five services share: connecting, the journal, event handlers, presence, and an orderly end."""

from .context import Context, make_context, open_context
from .device_lock import DeviceLock
from .event_handlers import EventHandlers, HandlerTable, keep_alive
from .gc_control import GcControl
from .journal import Journal
from .presence import LeaseWatch, Presence, read_lease
from .run_document import failure_reason, read_run, stop_run
from .run_service import run_service

__all__ = [
    "Context",
    "DeviceLock",
    "EventHandlers",
    "GcControl",
    "HandlerTable",
    "Journal",
    "LeaseWatch",
    "Presence",
    "failure_reason",
    "keep_alive",
    "make_context",
    "open_context",
    "read_lease",
    "read_run",
    "run_service",
    "stop_run",
]  # fmt: skip
