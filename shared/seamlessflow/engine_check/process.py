"""One process of an engine's self-check: an order in a file, a report in another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ..errors import SeamlessFlowError

Order = TypeVar("Order", bound=BaseModel)


def report_on_order(arguments: Sequence[str], kind: type[Order], run: Callable[[Order], BaseModel]) -> int:
    """``arguments``: the files of the order and of the report. Returns the exit code; 2, with the reason on standard error, for
    what ``run`` refuses.
    """
    order_file, report_file = map(Path, arguments)
    try:
        report = run(kind.model_validate_json(order_file.read_text()))
    except SeamlessFlowError as wrong:
        print(f"{type(wrong).__name__}: {wrong}", file=sys.stderr)
        return 2
    report_file.write_text(report.model_dump_json())
    return 0
