"""A command in a terminal of its own, and what a person would see there.

The command gets a real pseudo-terminal with a size; its bytes go to pyte, which keeps the screen as xterm would.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

SECONDS = 60.0
LOOK_SECONDS = 0.02
CTRL_C = b"\x03"


class Terminal:
    """One command in one window; ``close`` ends both."""

    def __init__(self, cwd: Path, *arguments: str, columns: int, lines: int) -> None:
        cwd.mkdir(exist_ok=True)
        self._keyboard, self._line = pty.openpty()
        self._screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(columns, lines)
        self.settings = termios.tcgetattr(self._line)
        """Of the line before the command had it: echo, line editing, signals."""
        clean = {k: v for k, v in os.environ.items() if k not in NOT_A_TERMINAL and not k.startswith("SEAMLESSFLOW_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seamlessflow.cli", *arguments],
            cwd=cwd, stdin=self._line, stdout=self._line, stderr=self._line, start_new_session=True,
            env={**clean, "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C reaches whoever has the terminal
        )  # fmt: skip

    def resize(self, columns: int, lines: int) -> None:
        """As if the window was dragged: the kernel tells the command."""
        fcntl.ioctl(self._line, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    def press(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def lines(self) -> list[str]:
        """What is on the screen now, without empty lines and without the blanks at their ends."""
        while select.select([self._keyboard], [], [], 0)[0]:
            self._stream.feed(os.read(self._keyboard, 65536))
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def scrolled(self) -> list[str]:
        """Everything that is and was on the screen and was not wiped, from the first line on."""
        now = self.lines()
        gone = ["".join(line[x].data for x in range(self._screen.columns)).rstrip() for line in self._screen.history.top]
        return [line for line in gone if line] + now

    def cell(self, label: str) -> str:
        """What the live table says beside a label; empty when it is not there. Cells stand two blanks apart."""
        for line in reversed(self.lines()):  # the table is below the lines that scroll by
            cells = re.split(r"\s{2,}", line)
            if label in cells[:-1]:
                return cells[cells.index(label) + 1]
        return ""

    @property
    def shows_cursor(self) -> bool:
        self.lines()
        return not self._screen.cursor.hidden

    @property
    def cursor_is_at_line_start(self) -> bool:
        """So that a shell's prompt begins a line of its own."""
        self.lines()
        return self._screen.cursor.x == 0

    @property
    def is_as_before(self) -> bool:
        """Whether echo, line editing and signals are what the command found."""
        return termios.tcgetattr(self._line) == self.settings

    async def wait_for(self, words: str) -> None:
        """Until the screen shows the words."""
        await self._wait(lambda: any(words in line for line in self.lines()), words)

    async def wait_for_cell(self, label: str, words: str) -> None:
        """Until the live table says this beside a label."""
        await self._wait(lambda: self.cell(label) == words, f"{label}: {words}")

    async def end(self) -> int:
        """The exit code, once the command has ended."""
        await self._wait(lambda: self.lines() is not None and self.process.poll() is not None, "an end", may_end=True)
        return self.process.returncode

    async def _wait(self, holds, what: str, *, may_end: bool = False) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            shown = "\n".join(self.scrolled())
            assert may_end or self.process.poll() is None, f"ended before {what!r}:\n{shown}"
            assert time.monotonic() < deadline, f"no {what!r} in {SECONDS:.0f} s:\n{shown}"
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._keyboard)
        os.close(self._line)


NOT_A_TERMINAL = ("CI", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR", "COLUMNS", "LINES")
"""Variables of the machine the tests run on that would change what rich makes of a terminal."""
