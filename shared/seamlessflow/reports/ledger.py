"""The ledger of a run: where every attempt and every sampled token went, recomputed from the journal. Pure.

    issued = trained + masked(reason) + dropped(reason) + evaluated + in_flight

* **trained**, **masked**: as in the group's closing, and only once a StepsCommitted covers the group.
* **dropped**: ``superseded`` (another attempt followed), ``failed`` (the attempt did not complete), ``run_ended`` (the run was
  over first), ``undelivered`` (tokens of a completed attempt that are in none of its samples: the agent never saw them),
  ``rolled_back`` (all others of a group whose training a rollback took back), and the reason of GroupDropped for all others of
  a dropped group.
* **evaluated**: attempts of evaluation episodes that were judged.
* **in_flight**: no final event yet. 0 after an orderly end.

The first closing of a group wins, in journal order; later ones are passed over. What closes a group:

======================  ==========================================================================================
StepsCommitted          closes and commits the groups of its account
GroupTrained            before the run's first claim; it counts as trained once a StepsCommitted covers the group. After the
                        first claim it repeats an account, or is a late writer's of an earlier release: passed over
GroupDropped            drops the group
RolledBack              alone overrides a first closing: of groups that were committed after the checkpoint it goes back to,
                        and of those that were published as trained and are in no commit
======================  ==========================================================================================

What another claim than the newest published, or none after the first claim, is passed over (``commit_history``).

Each attempt stands in one column of the episodes; its tokens may stand in several. Right sums are not enough: a ledger does
not balance while ``gaps`` names an episode, each judged by itself, so that two wrongs make no right:

* the trainer accounted for more or for fewer tokens than its samples hold, or for an attempt without SamplesReady;
* its samples are not what was sampled. Of a completed attempt, tokens in samples + ``num_undelivered`` = ``num_sampled``;
  of others it is at most that;
* ``num_sampled`` (of an evaluation, too) is less than the journal held at EpisodeEnded, or more than it ever held. What is
  stored later may be counted or not: a worker learns of the end a moment late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import (
    DropReason,
    EpisodeEnded,
    EpisodeEvaluated,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    EpisodeTokens,
    Event,
    GroupDropped,
    GroupTrained,
    RolledBack,
    RunEnded,
    SamplesReady,
    SegmentSampled,
    StepsCommitted,
    TrainedGroup,
)

SUPERSEDED, UNDELIVERED, FAILED, RUN_ENDED = "superseded", "undelivered", "failed", "run_ended"
ROLLED_BACK = "rolled_back"
_GROUP_REASONS = {ROLLED_BACK, *(reason.value for reason in DropReason)} - {FAILED, RUN_ENDED}
_Closing = GroupTrained | TrainedGroup | GroupDropped


@dataclass(frozen=True, slots=True)
class Account:
    """One unit (attempts, or tokens) split into columns."""

    issued: int = 0
    trained: int = 0
    masked: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    evaluated: int = 0
    in_flight: int = 0

    @property
    def explained(self) -> int:
        """Sum of all columns."""
        return self.trained + sum(self.masked.values()) + sum(self.dropped.values()) + self.evaluated + self.in_flight

    @property
    def balanced(self) -> bool:
        """Whether the columns add up to ``issued`` and none is negative."""
        parts = (self.issued, self.trained, *self.masked.values(), *self.dropped.values(), self.evaluated, self.in_flight)
        return self.issued == self.explained and min(parts) >= 0

    def columns(self) -> dict[str, int]:
        """Column names in order, such as ``dropped: failed``, with their values."""
        return {
            "trained": self.trained,
            **{f"masked: {reason}": count for reason, count in sorted(self.masked.items())},
            **{f"dropped: {reason}": count for reason, count in sorted(self.dropped.items())},
            "evaluated": self.evaluated,
            "in flight": self.in_flight,
        }

    def to_json(self) -> dict[str, Any]:
        """All columns, as JSON values."""
        return {
            "issued": self.issued,
            "trained": self.trained,
            "masked": dict(sorted(self.masked.items())),
            "dropped": dict(sorted(self.dropped.items())),
            "evaluated": self.evaluated,
            "in_flight": self.in_flight,
            "balanced": self.balanced,
        }


@dataclass(frozen=True, slots=True)
class Ledger:
    """Both accounts of a run. ``gaps``: episodes with a wrong count, see above."""

    episodes: Account
    tokens: Account
    gaps: tuple[str, ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event]) -> Ledger:
        """The ledger of a history in journal order, each stored event once; events of other kinds are passed over."""
        fold = LedgerFold()
        for event in events:
            fold.add(event)
        return fold.ledger()

    @property
    def balanced(self) -> bool:
        """Whether both accounts balance and no episode has a gap."""
        return self.episodes.balanced and self.tokens.balanced and not self.gaps

    def rows(self) -> list[tuple[str, int, int]]:
        """(column, episodes, tokens) for a table: issued first, then every column that is in use."""
        episodes, tokens = self.episodes.columns(), self.tokens.columns()
        names = sorted({*episodes, *tokens}, key=_place)
        return [
            ("issued", self.episodes.issued, self.tokens.issued),
            *((name, episodes.get(name, 0), tokens.get(name, 0)) for name in names),
        ]

    def to_json(self) -> dict[str, Any]:
        """Both accounts and the gaps, as JSON values."""
        return {
            "balanced": self.balanced,
            "episodes": self.episodes.to_json(),
            "tokens": self.tokens.to_json(),
            "gaps": list(self.gaps),
        }


def _place(column: str) -> tuple[int, str]:
    order = ("trained", "masked", "dropped", "evaluated", "in flight")
    return order.index(column.partition(":")[0]), column


@dataclass(slots=True)
class _Attempt:
    """What is known of one attempt."""

    origin: EpisodeOrigin | None = None
    num_sampled: int = 0
    """Tokens that the journal holds."""
    num_at_end: int = 0
    """Of those, what it held when the attempt ended."""
    num_counted: int | None = None
    """What the trajectory-manager counted; None: it has not judged the attempt."""
    num_called_undelivered: int = 0
    status: EpisodeStatus | None = None
    evaluated: bool = False
    num_in_samples: int | None = None
    """None: no SamplesReady yet."""

    @property
    def num_undelivered(self) -> int:
        return 0 if self.num_in_samples is None else self.num_sampled - self.num_in_samples

    @property
    def is_well_judged(self) -> bool:
        """Whether the manager's counts are those of the journal, and add up; True while it has published none."""
        if self.num_counted is None:
            return True
        placed = (self.num_in_samples or 0) + self.num_called_undelivered
        must_add_up = self.num_in_samples is not None and self.status is EpisodeStatus.COMPLETED
        adds_up = placed == self.num_counted if must_add_up else placed <= self.num_counted
        return adds_up and self.num_at_end <= self.num_counted <= self.num_sampled


class LedgerFold:
    """Takes events one by one; a ledger can be had at any time. Memory: a few hundred bytes an attempt."""

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}
        self._newest: dict[tuple[str, int], int] = {}
        """(group, index) to its newest attempt."""
        self._closed: dict[str, _Closing] = {}
        self._committed: set[str] = set()
        self._rolled_back: set[str] = set()
        self._history = CommitHistory()
        self._run_ended = False

    def add(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, SegmentSampled):
            self._on_segment(event)
        elif not self._history.accepts(event):
            return
        elif isinstance(event, EpisodeOpened):
            self._open(event.episode, event.origin)
        elif isinstance(event, EpisodeEnded):
            attempt = self._open(event.episode, event.origin)
            attempt.status, attempt.num_at_end = event.status, attempt.num_sampled
        elif isinstance(event, EpisodeEvaluated):
            attempt = self._open(event.episode, event.origin)
            attempt.evaluated, attempt.status = True, event.status
            attempt.num_counted = event.num_sampled
        elif isinstance(event, SamplesReady):
            attempt = self._open(event.episode, event.origin)
            attempt.num_in_samples, attempt.status = sum(s.num_sampled for s in event.samples), event.status
            attempt.num_counted, attempt.num_called_undelivered = event.num_sampled, event.num_undelivered
        elif isinstance(event, RunEnded):
            self._run_ended = True
        else:
            self._on_closing(event)

    def ledger(self) -> Ledger:
        """The ledger of what was added so far."""
        episodes, tokens, gaps = _Sums(), _Sums(), []
        listed = {
            name: {each.episode: each for each in closing.episodes}
            for name, closing in self._closed.items()
            if not isinstance(closing, GroupDropped)
        }
        for name, attempt in self._attempts.items():
            column, agrees = self._column(attempt), attempt.is_well_judged
            if column != "trained":
                undelivered = attempt.num_undelivered if column in _GROUP_REASONS else 0
                episodes.add(column, 1)
                tokens.add(UNDELIVERED, undelivered)
                tokens.add(column, attempt.num_sampled - undelivered)
            else:
                assert attempt.origin is not None
                went = listed[attempt.origin.group].get(name) or EpisodeTokens(episode=name, trained=0)
                episodes.add(_main_column(went), 1)
                agrees = self._split(attempt, went, tokens) and agrees
            if not agrees:
                gaps.append(name)
        issued = sum(attempt.num_sampled for attempt in self._attempts.values())
        return Ledger(episodes.account(len(self._attempts)), tokens.account(issued), tuple(gaps))

    def _on_closing(self, event: Event) -> None:
        """What closes or commits groups, or takes that back."""
        taken_back = self._history.apply(event)
        if isinstance(event, GroupDropped) or (isinstance(event, GroupTrained) and not self._history.claims):
            self._closed.setdefault(event.group, event)
        elif isinstance(event, StepsCommitted):
            for group in event.account:
                self._closed.setdefault(group.group, group)
            self._committed.update(event.groups)
        elif isinstance(event, RolledBack):
            trained = (name for name, closing in self._closed.items() if not isinstance(closing, GroupDropped))
            self._rolled_back.update(taken_back, (name for name in trained if name not in self._committed))

    def _on_segment(self, event: SegmentSampled) -> None:
        # Whatever the journal stored was accepted by the fence; a stored segment is read once.
        self._attempts.setdefault(event.episode, _Attempt()).num_sampled += len(event.token_ids)

    def _open(self, episode: str, origin: EpisodeOrigin) -> _Attempt:
        attempt = self._attempts.setdefault(episode, _Attempt())
        if attempt.origin is None:
            attempt.origin = origin
            place = (origin.group, origin.index)
            self._newest[place] = max(origin.attempt, self._newest.get(place, 0))
        return attempt

    def _column(self, attempt: _Attempt) -> str:
        """The one column of an attempt; ``trained`` stands for a split as in its group's closing."""
        origin = attempt.origin
        if origin is None:
            return "in_flight"
        if self._newest[origin.group, origin.index] > origin.attempt:
            return SUPERSEDED
        if origin.evaluation is not None:
            if attempt.status is EpisodeStatus.RUN_ENDED or (self._run_ended and not attempt.evaluated):
                return RUN_ENDED
            return "evaluated" if attempt.evaluated else "in_flight"
        column = self._column_of_group(origin.group)
        if column != "in_flight":
            if attempt.status is EpisodeStatus.RUN_ENDED:
                return RUN_ENDED
            if attempt.status not in (EpisodeStatus.COMPLETED, None):
                return FAILED
        return column

    def _column_of_group(self, group: str) -> str:
        """Of its members that completed."""
        closing = self._closed.get(group)
        if group in self._rolled_back:
            return ROLLED_BACK
        if isinstance(closing, GroupDropped):
            return closing.reason.value
        return "in_flight" if closing is None or group not in self._committed else "trained"

    def _split(self, attempt: _Attempt, went: EpisodeTokens, tokens: _Sums) -> bool:
        """Share out the tokens of an attempt of a trained group; False when the trainer's account is not its samples'."""
        went_somewhere = went.trained + sum(went.masked.values())
        tokens.add("trained", went.trained)
        for reason, count in went.masked.items():
            tokens.add_masked(reason, count)
        in_samples = went_somewhere if attempt.num_in_samples is None else attempt.num_in_samples
        tokens.add(UNDELIVERED, attempt.num_sampled - in_samples)
        return went_somewhere == (attempt.num_in_samples or 0)


def _main_column(went: EpisodeTokens) -> str:
    """Trained if any of its tokens was (or it had none: its reward still counted); else where most of them went."""
    if went.trained > 0 or not any(went.masked.values()):
        return "trained"
    return "masked." + max(sorted(went.masked), key=lambda reason: went.masked[reason])


class _Sums:
    """Columns being added up."""

    def __init__(self) -> None:
        self._plain = {"trained": 0, "evaluated": 0, "in_flight": 0}
        self._masked: dict[str, int] = {}
        self._dropped: dict[str, int] = {}

    def add(self, column: str, count: int) -> None:
        if column in self._plain:
            self._plain[column] += count
        elif column.startswith("masked."):
            self.add_masked(column.removeprefix("masked."), count)
        elif count:
            self._dropped[column] = self._dropped.get(column, 0) + count

    def add_masked(self, reason: str, count: int) -> None:
        if count:
            self._masked[reason] = self._masked.get(reason, 0) + count

    def account(self, issued: int) -> Account:
        plain = self._plain
        return Account(issued, plain["trained"], self._masked, self._dropped, plain["evaluated"], plain["in_flight"])
