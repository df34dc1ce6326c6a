"""When a run was suspended, from its journal alone: no process of it lived on through the silence. Pure.

No event records a suspension: a killed process publishes nothing. But a process that claims generations, loads weights or
starts episodes names itself, and a trainer counts its incarnations (``line``). While a run goes on, some process is seen
before and after any death or wait; a suspension is the longest silence between the last sign of the old processes and the
first sign of new ones. Missed: a suspension after which no process sampled or trained, and one of processes that came back
under their old names. Mistaken for one: two seconds of silence in the last round, when the only worker died and came back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seamlessflow.contracts import (
    EpisodeStarted,
    Event,
    GenerationClaimed,
    SegmentSampled,
    StepTaken,
    TrainerStarted,
    WeightsLoaded,
)

MIN_SECONDS = 2.0
"""No command is ended and started again faster."""

Span = tuple[float, float]


class Lives:
    """The first and last sign of each process, and the silences between events. Fed with a journal in order; Unix seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, Span] = {}
        self._silences: list[Span] = []
        self._last: float | None = None

    def add(self, event: Event, time: float) -> None:
        """Take one event in."""
        if self._last is not None and time - self._last >= MIN_SECONDS:
            self._silences.append((self._last, time))
        self._last = time
        if (name := _who(event)) is not None:
            self._seen[name] = (self._seen.get(name, (time, time))[0], time)

    def suspensions(self) -> list[Span]:
        """(from, to) of each, in order."""
        found = []
        for former, later in _between(self._seen):
            inside = [span for span in self._silences if former <= span[0] and span[1] <= later]
            if inside:
                found.append(max(inside, key=lambda span: span[1] - span[0]))
        return found


def seconds_within(spans: Iterable[Span], since: float, until: float) -> float:
    """How much of an interval the spans, which do not overlap, cover."""
    return sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in spans)


def _who(event: Event) -> str | None:
    match event:
        case EpisodeStarted():
            return f"runner {event.runner}"
        case GenerationClaimed() | SegmentSampled(worker=str()) | WeightsLoaded():
            return f"worker {event.worker}"
        case TrainerStarted() | StepTaken():
            return f"trainer {event.line}"
    return None


def _between(lives: dict[str, Span]) -> Iterator[Span]:
    """The intervals without a process: from a last sign to the first sign of an old process's successor."""
    until: float | None = None
    kinds: set[str] = set()
    for (first, last), name in sorted((span, name) for name, span in lives.items()):
        kind = name.partition(" ")[0]
        if until is not None and first > until and kind in kinds:
            yield until, first
            kinds = set()
        kinds.add(kind)
        until = last if until is None else max(until, last)
