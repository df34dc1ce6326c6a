"""Processes of the benchmark: they end with it, and those of ours talk in lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from seamlessflow.local.child_processes import die_with_parent

STOP_SECONDS = 10.0
MAX_LINE_BYTES = 1 << 26


class Child:
    """A process. One of ours says a JSON line when it is ready, and one for each line it is told."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
        """``log`` gets what it writes on standard error."""
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                limit=MAX_LINE_BYTES,
                env=dict(environment),
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else "none"

    async def heard(self) -> Any:
        """The next line it says. Raises RuntimeError when it has ended instead."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise RuntimeError(f"{self._log.stem} ended with status {status}; its last words: {self.last_words()}")
        return json.loads(line)

    async def told(self, what: object) -> Any:
        """What it says to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        return await self.heard()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.communicate()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def lines_told() -> asyncio.StreamReader:
    """The child's side: standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def reply(what: object) -> None:
    """The child's side: one line on standard output."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
