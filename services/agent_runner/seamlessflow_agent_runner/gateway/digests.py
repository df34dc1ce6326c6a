"""Content addresses: the same message has the same digest in every call of an episode."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgpack


def digest(content: Any) -> str:
    """SHA-256 (hex) of the canonical JSON: keys sorted, no spaces, UTF-8. Raises ValueError for text that is not Unicode."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Digests:
    """``digest`` that works out each content once: a conversation brings all of its history again with every call.

    The same content is told by its msgpack, which is quicker to make and to hash than canonical JSON is.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def of(self, content: Any) -> str:
        """See ``digest``."""
        key = hashlib.sha256(msgpack.packb(content)).digest()[:16]
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = digest(content)
        return known
