"""What all five services share: connecting, saying events, handling events, presence, and an orderly end."""

from .commit_claim import CommitClaim, publish_account, publish_rest, read_commits
from .context import Context, make_context, open_context
from .device import DeviceLock
from .inbox import HandlerTable, Inbox, keep_alive
from .presence import LeaseWatch, Presence, read_lease
from .runs import failure_words, read_run, stop_run
from .settling import Settling
from .speaker import Speaker
from .starting import run_service

__all__ = [
    "CommitClaim", "Context", "DeviceLock", "HandlerTable", "Inbox", "LeaseWatch", "Presence", "Settling", "Speaker",
    "failure_words", "keep_alive", "make_context", "open_context", "publish_account", "publish_rest", "read_commits",
    "read_lease", "read_run", "run_service", "stop_run",
]  # fmt: skip
