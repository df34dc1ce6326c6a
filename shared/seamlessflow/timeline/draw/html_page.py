"""The picture as one page for a browser: zoom, move, look closer. Everything inline, nothing is fetched."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable
from pathlib import Path

from seamlessflow.timeline import BUSY, Series, Shares, SpanKind, Timeline

from .layout import Rows, TimelineRow, columns_of, facts, full, percent, rows_of
from .palette import DARK, LIGHT, WORDS, Palette

_HERE = Path(__file__).parent
_SCRIPTS = ("page_strips.js", "page_panels.js", "page_pointer.js")
_KINDS = tuple(WORDS)
MOST_POINTS = 4096
MOST_ROWS_OPEN = 40
"""A longer table begins folded."""


def write_html(lanes: Timeline, path: Path) -> None:
    """Draw it."""
    rows = rows_of(lanes)
    filled = {
        "TITLE": html.escape(lanes.title),
        "FACTS": f"{' · '.join(facts(lanes, rows))} ({rows.window_text})",
        "WINDOW": rows.window_text,
        "NOTES": _notes(lanes.notes),
        "OPEN": " open" if len(rows.rows) <= MOST_ROWS_OPEN else "",
        "TABLE": _table(rows),
        # As text, "<" could end the script or begin a comment in it; reasons may hold anything.
        "DATA": json.dumps(_data(lanes, rows), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "SCRIPT": "\n".join((_HERE / name).read_text() for name in _SCRIPTS),
    }
    pieces = (_HERE / "page.html").read_text().split("@")
    path.write_text("".join(filled.get(piece, piece) if place % 2 else piece for place, piece in enumerate(pieces)))


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _table(rows: Rows) -> str:
    columns = columns_of(row.shares for row in rows.rows)
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *columns))

    def line(name: str, shares: Shares, attribute: str = "") -> str:
        cells = "".join(f"<td>{percent(value(shares))}</td>" for value in columns.values())
        return f"<tr{attribute}><td>{html.escape(name)}</td>{cells}</tr>"

    lines = [line(f"all {len(rows.rows):,}", rows.shares, " class=sum")]
    for group in rows.groups:
        if 1 < len(rows.groups) < len(rows.rows):
            lines.append(line(f"{group.name} ({len(group.rows):,})", group.shares, " class=sum"))
        lines += [line(row.node, row.shares) for row in group.rows]
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _data(lanes: Timeline, rows: Rows) -> dict[str, object]:
    """What the scripts read; see the first lines of page_strips.js."""
    present = {span.kind for span in lanes.spans}
    reasons: dict[str, int] = {}
    most = full(lanes)
    return {
        "length": max(lanes.end - lanes.start, 1e-3),
        "zero": round(lanes.start - lanes.origin, 4),
        "kinds": [[kind.value, WORDS[kind], _order(kind), kind in present] for kind in _KINDS],
        "rollout": _KINDS.index(SpanKind.ROLLOUT),
        "most": most,
        "colours": {"light": _colours(LIGHT), "dark": _colours(DARK)},
        "groups": [[group.name, len(group.rows), round(group.shares.busy, 4)] for group in rows.groups],
        "nodes": [_node(row, lanes, most, reasons) for row in rows.rows],
        "reasons": list(reasons),
        "queued": _series(lanes.queued, lanes.start),
        "flight": _series(lanes.in_flight, lanes.start),
        "steps": [
            [step.step, round(step.time - lanes.start, 4), step.staleness_mean, step.staleness_max, step.weights_version]
            for step in lanes.steps
        ],
        "versions": [[round(time - lanes.start, 4), version] for time, version in lanes.versions],
    }


def _order(kind: SpanKind) -> int:
    """Where it lies in a pile: what devices are for at the bottom."""
    return len(_KINDS) - ([*BUSY, *(each for each in _KINDS if each not in BUSY)].index(kind))


def _colours(palette: Palette) -> dict[str, str]:
    own = {kind.value: colour for kind, colour in palette.kinds.items()}
    return own | {
        "few": palette.rollout_few, "page": palette.page, "text": palette.text, "faint": palette.faint, "rule": palette.rule,
        "queued": palette.queued, "flight": palette.in_flight, "stale": palette.staleness,
    }  # fmt: skip


def _node(row: TimelineRow, lanes: Timeline, most: float, reasons: dict[str, int]) -> dict[str, object]:
    """Spans as [kind, milliseconds, reason, epoch, busy percent] one after the other; holes between them become AWAY."""
    flat: list[int | float] = []
    offset = at = round(1000 * (row.spans[0].start - lanes.start))
    for span in row.spans:
        start, end = round(1000 * (span.start - lanes.start)), round(1000 * (span.end - lanes.start))
        if start > at:
            flat += [_KINDS.index(SpanKind.AWAY), start - at, reasons.setdefault("", len(reasons)), -1, 100]
        if end > at:
            why = reasons.setdefault(span.reason, len(reasons))
            epoch = -1 if span.epoch is None else span.epoch
            flat += [_KINDS.index(span.kind), end - max(at, start), why, epoch, round(100 * span.busy)]
            at = end
    node: dict[str, object] = {"n": row.node, "b": round(row.shares.busy, 4), "o": offset, "s": flat}
    series = lanes.node_in_flight.get(row.node)
    if series is not None and most:
        levels = bytes(min(255, round(255 * value / most)) for value in series.values)
        node["f"] = {"s": round(series.start - lanes.start, 6), "w": series.width, "v": base64.b64encode(levels).decode()}
    return node


def _series(series: Series | None, start: float) -> dict[str, object] | None:
    if series is None:
        return None
    values, width = list(series.values), series.width
    while len(values) > MOST_POINTS:
        values = [(a + b) / 2 for a, b in zip(values[::2], [*values[1::2], values[-1]], strict=False)]
        width *= 2
    return {"s": round(series.start - start, 6), "w": width, "v": [round(value, 2) for value in values]}
