"""Content addresses: the same message has the same digest in every call of an episode."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(content: Any) -> str:
    """SHA-256 (hex) of the canonical JSON: keys sorted, no spaces, UTF-8. Raises ValueError for text that is not Unicode."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
