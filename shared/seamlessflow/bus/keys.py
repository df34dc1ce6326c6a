"""Which keys and times to live a bucket takes; shared by both buses, so that neither takes more than the server."""

from __future__ import annotations

import re

from seamlessflow.errors import BadInput

_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")


def checked_key(bucket: str, key: str) -> str:
    """The key itself. Raises BadInput for one that is no subject suffix."""
    if not _KEY.fullmatch(key):
        raise BadInput(f"key {key!r} of bucket {bucket}: letters, digits and -/_= in parts joined by dots are allowed")
    return key


def checked_ttl(key: str, ttl_seconds: int | None) -> int | None:
    """The time to live itself. Raises BadInput for less than the server's smallest unit, a second."""
    if ttl_seconds is not None and (ttl_seconds < 1 or int(ttl_seconds) != ttl_seconds):
        raise BadInput(f"ttl_seconds of {key} is {ttl_seconds}; the server counts whole seconds from 1")
    return ttl_seconds
