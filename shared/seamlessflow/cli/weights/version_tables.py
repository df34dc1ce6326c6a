"""What ``seamlessflow weights`` shows: tables for people, the same for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from seamlessflow.contracts import WeightsReading
from seamlessflow.redaction import without_password
from seamlessflow.weights.inventory import Listed

from .version_lookup import Found


def versions_table(found: Found) -> Table:
    """One row a folder, lowest version first."""
    table = Table(title=f"weights of {found.run}")
    for column in ("version", "step", "kind", "bytes", "builds on", "", "read by"):
        table.add_column(column, justify="right" if column in ("version", "step", "bytes") else "left", overflow="fold")
    for each in found.listed:
        manifest = each.manifest
        table.add_row(
            str(each.weights_version),
            "" if manifest is None or manifest.step is None else str(manifest.step),
            each.kind,
            bytes_words(each.num_bytes),
            "" if manifest is None or manifest.base is None else str(manifest.base),
            escape(", ".join(marks(found, each))),
            escape("\n".join(f"{one.reader} ({one.held_seconds:.0f} s)" for one in _reads_of(found, each))),
        )
    return table


def marks(found: Found, each: Listed) -> list[str]:
    """What else there is to say of a folder."""
    said = []
    if found.head is not None and found.head.path == each.path:
        said.append("head")
    named = found.published.get(each.weights_version)
    if each.fault:
        said.append(each.fault)
    elif each.manifest is None:
        is_above = found.newest is None or each.weights_version > found.newest
        said.append("being written, or its writer died" if is_above and not found.is_over else "its writer died")
    elif found.client is not None and named != each.path:
        said.append("never published" if named is None else "another attempt was published")
    return said


def _reads_of(found: Found, each: Listed) -> list[WeightsReading]:
    return [one for one in found.readings.reads if one.path == each.path]


def list_json(found: Found) -> dict[str, object]:
    """For programs."""
    return {
        "run": found.run,
        "store": without_password(found.store.url),
        "head": None if found.head is None else found.head.weights_version,
        "is_over": found.is_over if found.client is not None else None,
        "versions": [
            {
                "weights_version": each.weights_version,
                "path": each.path,
                "step": None if each.manifest is None else each.manifest.step,
                "is_complete": each.manifest is not None,
                "kind": each.kind,
                "num_bytes": each.num_bytes,
                "base": None if each.manifest is None else each.manifest.base,
                "is_head": found.head is not None and found.head.path == each.path,
                "notes": marks(found, each),
                "readers": [{"reader": one.reader, "held_seconds": one.held_seconds} for one in _reads_of(found, each)],
            }
            for each in found.listed
        ],
        "missed": [one.model_dump(mode="json") for one in found.readings.missed],
    }


def plan_table(found: Found, staying: Mapping[str, Sequence[str]]) -> Table:
    """What stays, and why; what may go."""
    table = Table(title=f"weights of {found.run}")
    for column in ("version", "kind", "bytes", "stays because"):
        table.add_column(column, justify="right" if column in ("version", "bytes") else "left", overflow="fold")
    for each in found.listed:
        why = staying.get(each.path)
        words = "goes" if why is None else "; ".join(dict.fromkeys(why))
        style = "yellow" if why is None else None
        table.add_row(str(each.weights_version), each.kind, bytes_words(each.num_bytes), escape(words), style=style)
    return table


def bytes_words(num_bytes: int | None) -> str:
    """``512 B``, ``2.1 MB``, ``14 GB``; ``?`` where it is not known."""
    if num_bytes is None:
        return "?"
    size, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
