"""The entrypoint function inside an agent's process.

``python -m seamlessflow_agent_runner.processes.agent_child module:function`` runs an entrypoint in this new
interpreter; a forkserver calls ``run_entrypoint`` in a forked one. Either way the runner reads one JSON object from file
descriptor 3: ``{"answer": text | null}``, or ``{"not_started": reason}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

RESULT_FD = 3
TASK_VARIABLE = "SEAMLESSFLOW_TASK"


class NotStartable(Exception):
    """The entrypoint does not exist or cannot be imported; the message says why."""


def load_entrypoint(name: str) -> Callable[[dict[str, Any]], Any]:
    """The function of ``module:function``. Raises NotStartable."""
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except BaseException as wrong:  # an import may even call sys.exit
        last = "".join(traceback.format_exception(wrong)[-6:])[-2000:]
        raise NotStartable(f"cannot import entrypoint {name}: {type(wrong).__name__}: {wrong}\n{last}") from wrong
    if not callable(function):
        raise NotStartable(f"entrypoint {name} is not a function")
    return function  # type: ignore[no-any-return]


def run_entrypoint(function: Callable[[dict[str, Any]], Any]) -> int:
    """Call the function with the task and report its answer; returns the exit code. A coroutine function is awaited."""
    try:
        with open(os.environ[TASK_VARIABLE], encoding="utf-8") as file:  # noqa: PTH123  pathlib costs an import here
            task = json.load(file)
        answer = function(task)
        if isinstance(answer, Coroutine):
            import asyncio  # costs 40 ms, and most agents do without

            answer = asyncio.run(answer)
        if answer is not None and not isinstance(answer, str):
            raise TypeError(
                f"an entrypoint returns a str, or None to be judged by what it printed; got {type(answer).__name__}"
            )
        sys.stdout.flush()
        report({"answer": answer})
        return 0
    except SystemExit as wrong:
        if wrong.code is None or isinstance(wrong.code, int):
            return wrong.code or 0
        print(wrong.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()


def report(result: dict[str, Any]) -> None:
    """Write one JSON object to the runner, whole."""
    payload = json.dumps(result).encode()
    while payload:
        payload = payload[os.write(RESULT_FD, payload) :]


def main(name: str) -> int:
    """Import and run one entrypoint; returns the exit code."""
    os.set_inheritable(RESULT_FD, False)
    try:
        function = load_entrypoint(name)
    except NotStartable as wrong:
        report({"not_started": str(wrong)})
        return 1
    return run_entrypoint(function)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
