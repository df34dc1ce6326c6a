"""What our item ids and encrypted contents carry: the call they come from. Written in answers, read in input. Pure.

Clients bring both back byte for byte, whatever else they rewrite.
"""

from __future__ import annotations

import base64
import re
from typing import Any

_CARRIER = re.compile(r"(?:resp|rs|msg|fc|call)_(c[0-9A-Za-z]+)(?:_[0-9]+)?")
REASONING = "rs_"
"""How ids of reasoning items begin."""
_SEAL = "sf1"


def response_id(call: str) -> str:
    """Of the whole response."""
    return f"resp_{call}"


def item_id(kind: str, call: str, index: int = 0) -> str:
    """Of an output item; ``kind`` is rs, msg or fc, as OpenAI's own prefixes. ``index`` tells a turn's function calls apart."""
    return f"{kind}_{call}_{index}"


def call_in(carrier: Any) -> str | None:
    """The call that an id carries; None for an id that is not ours."""
    found = _CARRIER.fullmatch(carrier) if isinstance(carrier, str) else None
    return None if found is None else found.group(1)


def sealed(call: str, reasoning: str) -> str:
    """Reasoning as ``encrypted_content``. It is no secret: it only has to come back as it went."""
    return f"{_SEAL}.{call}.{base64.urlsafe_b64encode(reasoning.encode()).decode()}"


def unsealed(content: Any) -> tuple[str, str] | None:
    """The call and its reasoning; None for what another server encrypted."""
    seal, call, text = content.split(".") if isinstance(content, str) and content.count(".") == 2 else ("", "", "")
    if seal != _SEAL or call_in(item_id("rs", call)) is None:
        return None
    try:
        return call, base64.b64decode(text, altchars=b"-_", validate=True).decode()
    except ValueError:
        return None
