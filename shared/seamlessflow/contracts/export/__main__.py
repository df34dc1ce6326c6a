"""Everything that is derived from the wiring table, as files: ``python -m seamlessflow.contracts.export [--check]``.

schemas/<Event>.json · schemas/asyncapi.json · docs/events.md · docs/run-file.md · deploy/permissions.conf. With ``--check``
nothing is written and the exit code is 1 when a file differs, is missing, or belongs to an event that no longer exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from seamlessflow.contracts.routes import ROUTES
from seamlessflow.errors import ConfigError

from .asyncapi import asyncapi_document
from .events_page import events_document
from .json_schema import event_document
from .permissions import permissions_conf
from .run_file_page import run_file_document


def derived_files() -> dict[str, str]:
    """Path below the project's root to content."""
    schemas = {f"schemas/{route.event.__name__}.json": _json(event_document(route.event)) for route in ROUTES}
    return {
        **schemas,
        "schemas/asyncapi.json": _json(asyncapi_document()),
        "docs/events.md": events_document(),
        "docs/run-file.md": run_file_document(),
        "deploy/permissions.conf": permissions_conf(),
    }


def drift(root: Path) -> list[str]:
    """Paths whose files differ from the contracts."""
    wanted = derived_files()
    differing = [path for path, content in wanted.items() if not _is(root / path, content)]
    return differing + [str(path.relative_to(root)) for path in _leftover(root, wanted)]


def write(root: Path) -> list[str]:
    """Bring the files up to date; returns what was changed."""
    changed = drift(root)
    wanted = derived_files()
    for path in changed:
        if path in wanted:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(wanted[path])
        else:
            (root / path).unlink()
    return changed


def _leftover(root: Path, wanted: dict[str, str]) -> list[Path]:
    return [path for path in sorted((root / "schemas").glob("*.json")) if f"schemas/{path.name}" not in wanted]


def _is(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text() == content


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str], root: Path) -> int:
    """Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m seamlessflow.contracts.export [--check]   (from the project's root)")
        return 2
    if not (root / "pyproject.toml").is_file():
        print(f"{root} is not the project's root: pyproject.toml is missing; nothing was written")
        return 2
    try:
        return _check(root) if arguments else _write(root)
    except ConfigError as wrong:
        print(f"nothing was written: {wrong}")
        return 1


def _check(root: Path) -> int:
    stale = drift(root)
    for path in stale:
        print(f"{path} differs from the contracts; run ./task schemas and commit the result")
    return 1 if stale else 0


def _write(root: Path) -> int:
    for path in write(root):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
