"""A run's curves for people's own tools: ``metrics.jsonl`` and TensorBoard, each step written once, over all commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seamlessflow.contracts import StepTaken


class MetricsFiles:
    """Appends steps that are not there yet, so that a command which reads a run's whole past again adds nothing twice."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        rows = _whole_lines(path)
        self._written = {(row.get("line"), row.get("step")) for row in rows}
        # What a killed command left half written goes away.
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._lines = path.open("a")
        self._board = _tensorboard(folder / "tensorboard")

    def add(self, event: StepTaken, time: float) -> None:
        """Write a step. ``time``: Unix seconds at which it was stored."""
        if (event.line, event.step) in self._written:
            return
        self._written.add((event.line, event.step))
        self._lines.write(json.dumps({"time": time, "step": event.step, "line": event.line, **event.metrics}) + "\n")
        self._lines.flush()
        if self._board is not None:
            for name, value in event.metrics.items():
                self._board.add_scalar(name, value, event.step, wall_time=time)

    def close(self) -> None:
        self._lines.close()
        if self._board is not None:
            self._board.close()


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _tensorboard(folder: Path) -> Any:
    try:
        from tensorboard.summary import Writer
    except ImportError:  # the extra "report" is not installed: metrics.jsonl is enough
        return None
    return Writer(str(folder))
