"""Runs a command so that a signal sent to this process alone reaches what the command started, as Ctrl-C in a terminal does.

A terminal signals a whole process group; ``kill PID``, a CI system or ``timeout --foreground`` signal one process, and
go-task keeps such a signal to itself. What the group has got already is not sent again: to many programs a second Ctrl-C
means "at once".
Whether it has, a witness tells: a process of the same group that does nothing else. Standard library only; run by its path.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

WITNESS_SECONDS = 0.5
"""How long the witness of a signal to the whole group may take to say so."""


class Relay:
    """One command's life."""

    def __init__(self) -> None:
        # A shell that starts a job with & ignores SIGINT for it; whoever sends it nevertheless means it. nohup means it, too.
        hangup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else set()
        self._signals = {signal.SIGINT, signal.SIGTERM} | hangup
        self._seen_by_witness, said = os.pipe()
        ours, self._alive = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        self._witness = os.fork()
        if self._witness == 0:
            os.close(self._alive)
            self._handle(lambda number, frame: os.write(said, bytes([number])) and None)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.read(ours, 1)  # until the relay is gone, however it went
            os._exit(0)
        os.close(said)
        os.close(ours)
        self._handle(self._on_signal)
        self._before = before
        self._witnessed: set[int] = set()

    def run(self, argv: list[str]) -> int:
        """Returns the command's exit code; 128 + N when signal N ended it."""
        # Signals wait until there is somebody to pass them on to.
        with subprocess.Popen(argv, preexec_fn=self._be_ordinary) as command:
            self._unblock()
            code = command.wait()
        os.close(self._alive)
        os.waitpid(self._witness, 0)
        return code if code >= 0 else 128 - code

    def _be_ordinary(self) -> None:
        """The command dies of a signal that waited, as if it had been there; ours is not the handler to run in it."""
        self._handle(signal.SIG_DFL)
        self._unblock()

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def _handle(self, handler: signal._HANDLER) -> None:
        for number in self._signals:
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        while number not in self._witnessed and select.select([self._seen_by_witness], [], [], WITNESS_SECONDS)[0]:
            said = os.read(self._seen_by_witness, 64)
            if not said:  # the witness is gone: better twice than never
                break
            self._witnessed.update(said)
        if number in self._witnessed:
            self._witnessed.discard(number)
            return
        for pid in group_below(os.getpid()):
            if pid != self._witness:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue


def group_below(root: int) -> Iterator[int]:
    """Descendants of a process that are in our process group: those a terminal would reach."""
    processes = list(_processes())
    below = [root]
    for parent in below:
        below += [pid for pid, its_parent, _ in processes if its_parent == parent]
    group = {pid for pid, _, its_group in processes if its_group == os.getpgrp()}
    yield from (pid for pid in below[1:] if pid in group)


def _processes() -> Iterator[tuple[int, int, int]]:
    """(process, parent, group) of all there are."""
    if not Path("/proc/self/stat").exists():
        ps = ["/bin/ps", "-A", "-o", "pid=,ppid=,pgid="]
        listed = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
        yield from ((int(pid), int(parent), int(group)) for pid, parent, group in map(str.split, listed.splitlines()))
        return
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, parent, group = file.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except OSError:  # ended meanwhile
            continue
        yield int(file.parent.name), int(parent), int(group)


if __name__ == "__main__":
    sys.exit(Relay().run(sys.argv[1:]))
