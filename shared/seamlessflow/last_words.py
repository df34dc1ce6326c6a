"""What a process said last, from its log: what it died of, fit for a screen."""

from __future__ import annotations

import json
from pathlib import Path

NUM_LINES = 6
LINE_CHARACTERS = 300
TAIL_BYTES = 64 * 1024
SHOWN_FIRST = ("event", "reason", "error")


def last_words(log: Path, num_lines: int = NUM_LINES) -> list[str]:
    """The last lines, oldest first; a JSON line as its event, its reasons and its traceback's end. Empty: none can be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line for raw in text.splitlines() if raw.strip() for line in _readable(raw)]
    return [line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " ..." for line in lines[-num_lines:]]


def _readable(raw: str) -> list[str]:
    try:
        fields = json.loads(raw)
    except ValueError:
        return [raw.rstrip()]
    if not isinstance(fields, dict):
        return [raw.rstrip()]
    told = "  ".join(str(fields[name]) for name in SHOWN_FIRST if fields.get(name)) or raw.rstrip()
    trace = [line for line in str(fields.get("exception", "")).splitlines() if line.strip()]
    return [told, *trace[-1:]]
