"""A version's file along one route: what it starts from, then the changes, then the digest of every tensor."""

from __future__ import annotations

import mmap
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .delta import apply, parse
from .digests import check_tensors
from .folders import WEIGHTS_FILE
from .manifests import DELTA_FILE
from .routes import Route
from .sources import Sources
from .tensorfile import map_tensors


@dataclass(frozen=True, slots=True)
class Held:
    """A version that is complete on this machine."""

    weights_version: int
    file: Path


def build(sources: Sources, route: Route, weights_version: int, file: Path, held: Held | None) -> None:
    """Make ``file`` the version's, along a route. held: where the route starts with it. The small files are fetched first.

    Blocks.
    Raises Unavailable or BadInput, and OSError where the disk refuses; ``file`` may hold anything then.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    deltas = {version: sources.delta(version) for version in route.deltas}
    if route.is_held:
        assert held is not None
        shutil.copyfile(held.file, file)
    else:
        sources.fetch(route.start, WEIGHTS_FILE, file, is_changed=bool(route.deltas))
    if not route.deltas:
        return
    tensors = map_tensors(file, writable=True)
    for version, delta in deltas.items():
        try:
            apply(parse(_mapped(delta), f"{sources.path(version)}/{DELTA_FILE}"), tensors)
        except BadInput:
            if not route.is_held:  # what is held may be to blame for it itself
                sources.mark_bad(version, DELTA_FILE)
            raise
    manifest = sources.get(weights_version)
    assert manifest is not None
    check_tensors(tensors, manifest.tensors or {}, f"weights version {weights_version}")


def _mapped(file: Path) -> memoryview:
    """Its bytes, read as they are needed."""
    with file.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if file.stat().st_size else b"")
