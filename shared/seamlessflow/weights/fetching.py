"""A version into a local file: by the cheapest route that leads there, every byte checked before anybody loads it.

    route ─▶ what is held, copied ─┐
          └▶ full file, digest ────┴▶ deltas, digest each ─▶ changed in place ─▶ digest of every tensor ─▶ NaN? ─▶ there

A missing or damaged part costs a route, not the version: the next one is gone, and said. What cannot be checked is not used.
The small files are fetched first and kept until the end, and no way is tried over a file that was bad once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from ..blobs import Store
from ..errors import BadInput, SeamlessFlowError, Unavailable
from .adapted import fetch_adapted
from .building import Held as Held
from .building import build
from .downloads import DiskTrouble
from .folders import WEIGHTS_FILE
from .routes import Route, routes
from .sources import Sources
from .tensorfile import check_numbers, map_tensors

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Obtained:
    """What was brought here, and how."""

    weights_version: int
    route: Route


def fetch_version(
    store: Store,
    path: str,
    weights_version: int,
    target: Path,
    *,
    held: Held | None = None,
    older_will_do: bool = False,
    bases: Path | None = None,
    parts: Path | None = None,
    may_link: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Obtained:
    """Put a version's ``model.safetensors`` into the folder ``target``. Blocks.

    path: the version's folder in the store; its manifest says where its base is. held: what deltas may start from; it is left
    as it is. older_will_do: where this version is damaged or not in the store, take the nearest older one that can be had.
    (Of a version that was collected there is none: older ones went first.)
    bases: of a version that is an adapter, where the base it is merged into is kept for the next one; None: nowhere.
    parts: where what arrived of a full file is kept when the rest cannot be had, so that the next fetch goes on from there;
    None: nowhere. may_link: nobody will write into the file, so it may be the store's own. should_stop: looked at often; the
    fetch then ends with Unavailable.
    Raises FileNotFoundError when the version is not in the store, Unavailable when no route leads to it, BadInput when a
    value is NaN; ``target`` holds no part of it then.
    """
    versions = Sources(store, path, weights_version, target / "deltas", parts=parts, may_link=may_link, should_stop=should_stop)
    try:
        versions.read(weights_version)
        return Obtained(weights_version, _go_any(versions, weights_version, target, held, bases))
    except (SeamlessFlowError, FileNotFoundError) as wrong:
        older = _take_older(versions, weights_version, target, wrong, bases) if older_will_do else None
        if older is None:
            raise
        return older
    finally:
        shutil.rmtree(target / "deltas", ignore_errors=True)


def _take_older(versions: Sources, wanted: int, target: Path, reason: Exception, bases: Path | None) -> Obtained | None:
    """The newest version before ``wanted`` that can be had; None: there is none."""
    for version in versions.older(wanted):
        if versions.should_stop():
            break
        try:
            route = _go_any(versions, version, target, None, bases)
        except SeamlessFlowError:
            continue  # said already
        log.warning("weights.older_taken", wanted=wanted, taken=version, reason=str(reason))
        return Obtained(version, route)
    return None


def _go_any(versions: Sources, weights_version: int, target: Path, held: Held | None, bases: Path | None) -> Route:
    """The first route that leads there, and numbers at its end. Raises what the first of them failed with."""
    if (manifest := versions.get(weights_version)) is not None and manifest.adapter is not None:
        path = versions.path(weights_version)
        stop = versions.should_stop
        fetch_full = partial(fetch_version, parts=versions.parts, may_link=versions.may_link, should_stop=stop)
        return fetch_adapted(versions.store, path, manifest, target, bases=bases, fetch_full=fetch_full, should_stop=stop)
    tried: list[Route] = []
    part = target / f"{WEIGHTS_FILE}.part"
    failure: SeamlessFlowError | None = None
    for num_full in (0, 1, 2):  # farther back only when the nearer ones failed
        for route in routes(weights_version, held.weights_version if held else None, versions.get, num_full=num_full):
            if route in tried or versions.is_bad(route) or (failure is not None and versions.should_stop()):
                continue
            tried.append(route)
            try:
                build(versions, route, weights_version, part, held)
            except (SeamlessFlowError, OSError) as wrong:
                part.unlink(missing_ok=True)
                failure = failure or (wrong if isinstance(wrong, SeamlessFlowError) else DiskTrouble(str(wrong)))
                _say_failed(weights_version, route, wrong)
                continue
            _put_in_place(part, target / WEIGHTS_FILE, weights_version)
            return route
    raise failure or Unavailable(
        f"weights version {weights_version}: no full version that it builds on can be had from {versions.store.url}; "
        "nothing was loaded"
    )


def _put_in_place(part: Path, file: Path, weights_version: int) -> None:
    """Raises BadInput when a value is NaN: every route leads to the same ones."""
    try:
        check_numbers(map_tensors(part), f"weights version {weights_version}")
    except BadInput:
        part.unlink()
        raise
    part.replace(file)


def _say_failed(weights_version: int, route: Route, wrong: Exception) -> None:
    log.warning(
        "weights.route_failed",
        weights_version=weights_version,
        start=route.start,
        is_held=route.is_held,
        deltas=list(route.deltas),
        reason=str(wrong),
    )
