"""Golden bytes: what was once written must always be readable. ``python -m tests.contracts.golden`` adds missing files.

golden/v<version>/<Event>.msgpack holds the bytes, <Event>.json what they must decode to. Existing files are never
written again: a run started last year is still being read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seamlessflow.codec import encode
from seamlessflow.contracts import Event
from tests.contracts.examples import EXAMPLES

FOLDER = Path(__file__).with_name("golden")


def golden_path(event: Event) -> Path:
    """Where the bytes of an event's present version rest."""
    return FOLDER / f"v{event.version}" / f"{type(event).__name__}.msgpack"


def meaning_of(event: Event) -> dict[str, Any]:
    """Fields as JSON values."""
    return event.model_dump(mode="json")


def add_missing() -> list[Path]:
    """Write golden files for events that have none; returns their paths."""
    missing = [event for event in EXAMPLES if not golden_path(event).exists()]
    for event in missing:
        path = golden_path(event)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(event))
        path.with_suffix(".json").write_text(json.dumps(meaning_of(event), indent=1) + "\n")
    return [golden_path(event) for event in missing]


if __name__ == "__main__":
    for added in add_missing():
        print(f"added {added}")
