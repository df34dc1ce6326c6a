"""What goes wrong in a run, as lines that do not flood: a few at once, then one now and then that counts the others. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..contracts import DeadLetter, EpisodeEnded, EpisodeStatus, Event

AT_ONCE = 3
EVERY_SECONDS = 15.0
LINE_CHARACTERS = 400


def complaint(event: Event) -> str | None:
    """One line for an event that a person should see, or None. A reason of many lines: its first and its last."""
    if isinstance(event, DeadLetter):
        return f"dead letter: {event.service} cannot handle {event.subject}: {brief(event.reason)}"
    if isinstance(event, EpisodeEnded) and event.status not in (EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED):
        return f"failed: episode {event.episode} ({event.origin.env}): {event.status.value}: {brief(event.reason)}"
    return None


def brief(reason: str) -> str:
    """A reason in one line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason was given"]
    line = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " ..."


@dataclass
class Complaints:
    """Lets ``AT_ONCE`` lines through in ``EVERY_SECONDS``; the next one that passes says how many did not. Seconds as given."""

    _since: float = float("-inf")
    _passed: int = 0
    _withheld: int = 0

    def line(self, event: Event, time: float) -> str | None:
        """What to print for an event at this time, or None."""
        said = complaint(event)
        if said is None:
            return None
        if time - self._since >= EVERY_SECONDS:
            self._since, self._passed = time, 0
        if self._passed >= AT_ONCE:
            self._withheld += 1
            return None
        self._passed += 1
        return said + self._others()

    def rest(self) -> str | None:
        """At the end: the count of what was never said, or None."""
        return f"failed: {self._withheld} more, not shown" if self._withheld else None

    def _others(self) -> str:
        others, self._withheld = self._withheld, 0
        return f" ({others} more since the last one shown)" if others else ""
