"""The history of a run's claims and commits, folded from the journal: the newest checkpoint, and commits taken back. Pure.

    TrainerClaimed ─▶ StepsCommitted ─▶ StepsCommitted ─▶ TrainerClaimed ─▶ RolledBack ─▶ StepsCommitted …
                                                                            └ takes back the commits after its checkpoint

All of these are on one subject, each appended with the sequence of the one before it as the expected last, so their order in
the journal is the order in which they count. Commits of earlier releases, which had no claims, count until the first claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from seamlessflow.contracts import (
    Event,
    GroupDropped,
    GroupTrained,
    ResumeRequested,
    RolledBack,
    RunEnded,
    RunHeld,
    StepsCommitted,
    TrainedGroup,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
)

ClaimedEvent = StepsCommitted | RolledBack | GroupDropped | TrainerStarted | TrainingEnded | RunHeld | RunEnded
"""Events that name the claim under which they were published."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that the journal names as the newest of its time. ``groups``: those trained since the one before."""

    step: int
    line: int
    checkpoint: str
    """Path below the run's store."""
    groups: tuple[str, ...] = ()
    account: tuple[TrainedGroup, ...] = ()
    has_claim: bool = True
    """False: an earlier release's commit, which was not fenced."""
    is_rollback: bool = False
    time: float = 0.0
    """Unix seconds when the journal stored it."""


@dataclass(slots=True)
class CommitHistory:
    """A fold over a run's events in journal order. Events of other kinds change nothing, nor do repeated ones.

    ``is_ordered`` False: the events come from a queue, which may deliver one again after younger ones. An event with a nonce
    then counts as the newest claim's at its time.
    """

    is_ordered: bool = True
    claims: list[TrainerClaimed] = field(default_factory=list)
    claim_times: list[float] = field(default_factory=list)
    named: list[Commit] = field(default_factory=list)
    """Every StepsCommitted and RolledBack that counted when it was stored, oldest first."""
    has_ended_training: bool = False
    ended: RunEnded | None = None
    """The run's end. None: it has not ended."""
    held: RunHeld | None = None
    """The hold that waits for a person. None: the run is not held."""
    request: ResumeRequested | None = None
    """The newest request of a person."""
    closed: set[str] = field(default_factory=set)
    """Groups whose closing counts, as far as such events were applied."""
    _surviving: list[Commit] = field(default_factory=list)
    _accounted: set[str] = field(default_factory=set)
    _passed_over: set[str] = field(default_factory=set)
    _requests: set[str] = field(default_factory=set)
    _known: set[tuple[object, ...]] = field(default_factory=set)

    @classmethod
    def of(cls, events: Iterable[Event]) -> CommitHistory:
        """The history of events in journal order."""
        history = cls()
        for event in events:
            history.apply(event)
        return history

    def accepts(self, event: Event) -> bool:
        """Whether an event counts. Claimed events need the newest claim's nonce, GroupTrained needs a commit of its group.

        The server refuses events of other claims. So one without the newest claim's nonce was published by an earlier release,
        which is not fenced, or after a loss of the journal's end: it is ignored. Before the first claim all events count.
        """
        if not self.claims:
            return True
        if isinstance(event, GroupTrained):
            return event.group in self._accounted
        if isinstance(event, ClaimedEvent):
            return event.nonce == self.claims[-1].nonce if self.is_ordered else bool(event.nonce)
        return True

    def apply(self, event: Event, time: float = 0.0) -> tuple[str, ...]:
        """Apply one event, stored at ``time`` (Unix seconds). Returns the groups whose training it takes back."""
        if isinstance(event, GroupTrained | GroupDropped) and self.accepts(event):
            self.closed.add(event.group)
        key = _identity(event)
        if key is None or key in self._known or not self.accepts(event):
            return ()
        self._known.add(key)
        match event:
            case TrainerClaimed():
                self.claims.append(event)
                self.claim_times.append(time)
            case StepsCommitted():
                self._commit(event, time)
            case RolledBack():
                self.held = None
                return self._roll_back(event, time)
            case TrainingEnded():
                self.has_ended_training = True
            case RunEnded():
                self.held, self.ended = None, event
            case RunHeld():
                self.held = event
            case ResumeRequested():
                self.held, self.request = None, event
        return ()

    def _commit(self, event: StepsCommitted, time: float) -> None:
        has_claim = bool(event.nonce)
        commit = Commit(event.step, event.line, event.checkpoint, event.groups, event.account, has_claim, time=time)
        self.named.append(commit)
        self._surviving.append(commit)
        self._accounted.update(event.groups)
        self.closed.update(event.groups)

    def _roll_back(self, event: RolledBack, time: float) -> tuple[str, ...]:
        self.named.append(Commit(event.step, event.line, event.checkpoint, is_rollback=True, time=time))
        self._passed_over.update(event.passed_over)
        self._requests.add(event.request)
        places = [place for place, commit in enumerate(self._surviving) if commit.checkpoint == event.checkpoint]
        kept = places[-1] + 1 if places else 0
        taken_back, self._surviving = self._surviving[kept:], self._surviving[:kept]
        still = {group for commit in self._surviving for group in commit.groups}
        return tuple(group for commit in taken_back for group in commit.groups if group not in still)

    @property
    def newest(self) -> Commit | None:
        """The commit that training resumes from. None: nothing was ever committed."""
        return self.named[-1] if self.named else None

    @property
    def surviving(self) -> tuple[Commit, ...]:
        """Commits that no rollback took back, oldest first."""
        return tuple(self._surviving)

    @property
    def newest_account(self) -> tuple[TrainedGroup, ...]:
        """The account of the newest surviving commit. Only its GroupTrained events may not be published yet."""
        return self._surviving[-1].account if self._surviving else ()

    @property
    def claim(self) -> TrainerClaimed | None:
        """The newest claim."""
        return self.claims[-1] if self.claims else None

    @property
    def is_closing(self) -> bool:
        """Whether a scheduler closes the run for good."""
        return any(claim.closes for claim in self.claims)

    @property
    def is_over(self) -> bool:
        """Whether training has ended for good."""
        return self.has_ended_training or self.ended is not None or self.is_closing

    @property
    def wanted_step(self) -> int | None:
        """The step of a requested rollback that has not been done yet. None: there is none."""
        request = self.request
        return None if request is None or request.request in self._requests else request.checkpoint_step

    def kept(self, keep: int) -> list[str]:
        """Paths of the ``keep`` newest checkpoints, the oldest of them first, without duplicates."""
        paths: list[str] = []
        for commit in reversed(self.named):
            if commit.checkpoint not in paths:
                paths.append(commit.checkpoint)
            if len(paths) == keep:
                break
        return paths[::-1]

    def targets(self, keep: int) -> list[Commit]:
        """Commits that a rollback may go back to, oldest first: they survive, and their checkpoints are kept."""
        kept = self.kept(keep)
        return [commit for commit in self._surviving if commit.checkpoint in kept]

    def target_of(self, step: int, keep: int) -> Commit | None:
        """The newest of ``targets`` with a step. None: there is none."""
        return next((commit for commit in reversed(self.targets(keep)) if commit.step == step), None)

    def knows(self, *, nonce: str, predecessor: str | None) -> bool:
        """Whether the journal holds the claim and the predecessor that a checkpoint's manifest names."""
        is_claimed = any(claim.nonce == nonce for claim in self.claims)
        return is_claimed and (predecessor is None or any(commit.checkpoint == predecessor for commit in self.named))

    def passes_over(self, checkpoint: str) -> bool:
        """Whether a rollback decided to ignore this checkpoint, which the journal does not explain."""
        return checkpoint in self._passed_over


def _identity(event: Event) -> tuple[object, ...] | None:
    """The key by which repeated events are recognised. None: the history ignores this kind of event."""
    match event:
        case TrainerClaimed() | RunHeld():
            return type(event), event.nonce
        case StepsCommitted():
            return type(event), event.nonce, event.line, event.checkpoint
        case RolledBack() | ResumeRequested():
            return type(event), event.request
        case TrainingEnded() | RunEnded():
            return (type(event),)
    return None
