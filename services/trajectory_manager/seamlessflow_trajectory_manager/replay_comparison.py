"""Would a manager say the same again? A journal against a fresh manager, event by event, told apart by their ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeEnded,
    EpisodeEvaluated,
    Event,
    GenerationEnded,
    GenerationRequested,
    RunEnded,
    SamplesReady,
    SegmentSampled,
)
from seamlessflow.contracts.subjects import message_id_of

from .trajectory.call_answers import instead_of_unreadable
from .trajectory.manager import ENDED, Manager, NotYet

log = structlog.get_logger()

HEARD = (CallRequested, SegmentSampled, GenerationEnded, EpisodeEnded)
SAID = (GenerationRequested, CallAnswered, SamplesReady, EpisodeEvaluated)


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that was said otherwise. ``said`` None: not in the journal. ``would_say`` None: not said by a fresh manager."""

    message_id: str
    said: Event | None
    would_say: Event | None

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that differ; empty when one side is missing."""
        if self.said is None or self.would_say is None:
            return ()
        names = type(self.said).model_fields
        return tuple(name for name in names if getattr(self.said, name) != getattr(self.would_say, name, None))

    def __str__(self) -> str:
        if self.said is None:
            return f"{self.message_id}: would be said, was not"
        if self.would_say is None:
            return f"{self.message_id}: was said, would not be"
        parts = (f"{name}: said {getattr(self.said, name)!r}, now {getattr(self.would_say, name)!r}" for name in self.fields)
        return f"{self.message_id}: " + "; ".join(part if len(part) < 400 else part[:400] + "…" for part in parts)


@dataclass(slots=True)
class Comparison:
    """``num_pending``: causes in the journal whose consequence is not said yet, as at the tail of a running run."""

    num_compared: int = 0
    num_equal: int = 0
    num_pending: int = 0
    differences: list[Difference] = field(default_factory=list)


def replay(events: Iterable[tuple[str, Event | None]], manager: Manager) -> Comparison:
    """Feed (subject, event) in journal order to a fresh manager and compare all it says with what was said.

    None: an event that nobody could read, which leads to what is said instead.
    """
    said: dict[str, Event] = {}
    would: dict[str, Event] = {}
    compared = Comparison()
    has_ended = False
    for subject, event in events:
        has_ended = has_ended or isinstance(event, RunEnded)
        if isinstance(event, SAID):
            said.setdefault(message_id_of(event), event)
        elif event is None or isinstance(event, HEARD):
            consequences = instead_of_unreadable(subject) if event is None else consequences_of(manager, event)
            for consequence in consequences:
                would.setdefault(message_id_of(consequence), consequence)
    for identity in sorted({*said, *would}):
        _compare(
            compared, identity, said.get(identity), would.get(identity), has_ended and not _is_moot(would.get(identity), said)
        )
    return compared


def _is_moot(would_say: Event | None, said: dict[str, Event]) -> bool:
    """Whether the end of the episode overtook it: a manager that was away while both came says only the refusal."""
    if isinstance(would_say, CallAnswered):
        return would_say.error == ENDED
    if not isinstance(would_say, GenerationRequested):
        return False
    refusal = CallAnswered(run=would_say.run, episode=would_say.episode, call=would_say.generation, error=ENDED)
    return said.get(message_id_of(refusal)) == refusal


def consequences_of(manager: Manager, event: Event) -> list[Event]:
    """What an event leads to when the journal is read in order; what waits for later events leads to nothing yet.

    What cannot be applied was dead-lettered by who was delivered it, whatever the error; it leads to what was said instead.
    """
    try:
        return manager.apply(event, settled=True)
    except NotYet:
        return []
    except Exception as wrong:
        reason = f"{type(wrong).__name__}: {wrong}"
        log.warning("journal.given_up", kind=type(event).__name__, episode=getattr(event, "episode", ""), reason=reason)
        return manager.give_up(event)


def _compare(into: Comparison, identity: str, said: Event | None, would_say: Event | None, is_due: bool) -> None:
    if said is None and not is_due:
        into.num_pending += 1
        return
    into.num_compared += 1
    if said == would_say:
        into.num_equal += 1
    else:
        into.differences.append(Difference(identity, said, would_say))
