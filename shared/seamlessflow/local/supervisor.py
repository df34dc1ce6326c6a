"""Keeps processes alive: restarts what dies, ends all of them together, and says when restarting does not help.

A child that dies again and again while nothing else gets on is hopeless: why is in the last lines of its log. It is
restarted all the same, until whoever runs the supervisor stops it. Every child dies with this process, kill -9 included,
and its output goes to a file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seamlessflow.local.child_processes import die_with_parent

# What a process said last, from its log: what it died of, fit for a screen.


NUM_LINES = 6
LINE_CHARACTERS = 300
TAIL_BYTES = 64 * 1024
SHOWN_FIRST = ("event", "reason", "error")


def last_words(log: Path, num_lines: int = NUM_LINES) -> list[str]:
    """The last lines, oldest first; a JSON line as its event, its reasons and its traceback's end. Empty: none can be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line for raw in text.splitlines() if raw.strip() for line in _readable(raw)]
    return [line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " ..." for line in lines[-num_lines:]]


def _readable(raw: str) -> list[str]:
    try:
        fields = json.loads(raw)
    except ValueError:
        return [raw.rstrip()]
    if not isinstance(fields, dict):
        return [raw.rstrip()]
    told = "  ".join(str(fields[name]) for name in SHOWN_FIRST if fields.get(name)) or raw.rstrip()
    trace = [line for line in str(fields.get("exception", "")).splitlines() if line.strip()]
    return [told, *trace[-1:]]


Say = Callable[[str, str], None]
"""Hears (name, what happened) for the screen."""

CALM_SECONDS = 10.0
"""A process that lived this long starts again at once; one that died sooner waits longer each time."""
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 8.0
HOPELESS_DEATHS = 5
"""So many deaths of one child in a row, without progress between them, are not bad luck."""
QUICK_SECONDS = 30.0
"""A life longer than this begins the count anew."""
STOP_SECONDS = 20.0
"""How long a service may take to end orderly before it is killed."""
SAY_WAITING_SECONDS = 5.0


@dataclass
class Child:
    """One supervised process."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log_path: Path
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    last_exit: int | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None


class Supervisor:
    """Runs children until stopped.

    ``progress``: a number that grows while what the children do together gets on; deaths with growth between them are bad luck.
    ``on_hopeless`` hears, once for each such child, how it dies and what it said last. Default: ``on_event``.
    """

    def __init__(
        self,
        children: list[Child],
        on_event: Say | None = None,
        *,
        progress: Callable[[], float] = lambda: 0.0,
        on_hopeless: Say | None = None,
    ) -> None:
        self.children = children
        self._report = on_event or (lambda name, what: None)
        self._report_hopeless, self._progress = on_hopeless or self._report, progress
        self._stopping = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin keeping every child alive."""
        self._keepers = [asyncio.create_task(self._keep(child)) for child in self.children]

    async def _keep(self, child: Child) -> None:
        backoff, deaths, progress = FIRST_BACKOFF_SECONDS, 0, 0.0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                end = await self._run_once(child)
            except (OSError, ValueError) as wrong:  # no process or no log file can be had now; later perhaps
                end = f"could not be started: {wrong}"
            if self._stopping.is_set():
                return
            child.restarts += 1
            calm = time.monotonic() - began > CALM_SECONDS
            backoff = FIRST_BACKOFF_SECONDS if calm else min(backoff * 2, MAX_BACKOFF_SECONDS)
            self._report(child.name, f"{end}; starting again in {backoff:.1f} s, see {child.log_path}")
            if time.monotonic() - began > QUICK_SECONDS or self._progress() > progress:
                deaths, progress = 0, self._progress()
            deaths += 1
            if deaths == HOPELESS_DEATHS:
                self._give_up(child, end)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff):
                    await self._stopping.wait()

    def _give_up(self, child: Child, end: str) -> None:
        said = "".join(f"\n  {line}" for line in last_words(child.log_path))
        why = f"{end}, {HOPELESS_DEATHS} times in a row, and nothing got on meanwhile. Last lines of {child.log_path}:{said}"
        self._report_hopeless(child.name, why)

    async def _run_once(self, child: Child) -> str:
        """One life of a child; how it ended, in words."""
        child.log_path.parent.mkdir(parents=True, exist_ok=True)
        with child.log_path.open("ab") as output:
            child.process = await asyncio.create_subprocess_exec(
                *child.argv,
                env=child.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=partial(die_with_parent, os.getpid()),
                start_new_session=True,  # Ctrl-C in the terminal is ours to pass on, in order
            )
        if self._stopping.is_set():  # asked for while it was being started
            _signal(child, signal.SIGTERM)
        child.last_exit = await child.process.wait()
        return f"died ({_cause(child.last_exit)})"

    async def stop(self) -> None:
        """SIGTERM to all, wait, saying for whom; kill what is left. Idempotent."""
        self._stopping.set()
        for child in self.children:
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while (left := [keeper for keeper in self._keepers if not keeper.done()]) and time.monotonic() < deadline:
            done, _ = await asyncio.wait(left, timeout=SAY_WAITING_SECONDS)
            if not done:
                self._report("stopping:", f"still waiting for {', '.join(c.name for c in self.children if c.running)}")
        for child in self.children:
            if child.running:
                self._report(child.name, f"killed: still there {STOP_SECONDS:.0f} s after SIGTERM")
                _signal(child, signal.SIGKILL)
        await asyncio.gather(*self._keepers, return_exceptions=True)


def _signal(child: Child, number: signal.Signals) -> None:
    if child.running and child.process is not None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
