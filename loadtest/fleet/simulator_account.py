"""What a simulated run came to: where the time of every node went, and every token. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Doing(StrEnum):
    """What a node does with its device."""

    ROLLOUT = "rollout"
    TRAIN = "train"
    HANDOVER = "hand-over"
    """Engine to sleep or awake, trainer's state on or off the device."""
    LOAD = "load"
    """Stands still for new weights."""
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Span:
    """One bar of a Gantt chart."""

    node: str
    doing: Doing
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Depths:
    """How much waited where, at one time."""

    at: float
    generations: int
    """For a slot."""
    groups_ready: int
    """For a step."""
    episodes: int
    """Open."""


@dataclass(frozen=True)
class Outcome:
    """Of the time after the warm-up, unless it says otherwise. Seconds are virtual."""

    seconds: float
    steps: int
    trained_tokens: int
    """Sampled tokens that a step used and that were young enough."""
    masked_tokens: int
    """Too old when their step came, those of groups that were dropped because all of theirs were included."""
    share: Mapping[str, Mapping[Doing, float]]
    """By node: the share of its time (as long as it was there)."""
    staleness: Mapping[int, int]
    """Age in steps to trained and masked tokens."""
    reprefilled_tokens: int
    """Over the whole run: prefilled although some engine had them before."""
    moved_generations: int
    """Over the whole run: handed back or lost with their node, and gone on with elsewhere."""
    lost_or_repeated_tokens: int
    """Over the whole run: by accounting, 0 unless the simulator is wrong."""
    unsaid_tokens: int
    """Sampled by nodes that died before they said so, and sampled again; never accepted."""
    cache_hits: float
    """Share of the tokens of earlier turns that a later turn found in its node's cache; 1.0 when there was none."""
    sampled_tokens: int
    """That were accepted."""
    node_seconds: float
    """Of all nodes, for as long as each was there."""
    floor_seconds: float
    """Node-seconds that a trained token takes at least, rolled out and trained."""
    rollout_share: float
    """Of those, the share of rolling out."""
    all_seconds: float
    all_tokens: int
    """Trained, from the very beginning."""
    num_plans: int
    num_events: int
    losses: Mapping[str, float] = field(default_factory=dict)
    """Where the node-time went that is missing from the bound (``simulator_losses``), as shares of all node-time."""
    spans: Sequence[Span] = field(repr=False, default=())
    depths: Sequence[Depths] = field(repr=False, default=())
    step_seconds: Sequence[float] = field(repr=False, default=())
    """When each step was taken."""

    @property
    def throughput(self) -> float:
        """Tokens a second, each counted as far as its work was done in the window: rolled out, trained.

        So what was rolled out before counts only as trained. Never more than were trained: what piles up unused does not
        count. Masked tokens do not count.
        """
        used = self.trained_tokens / (self.trained_tokens + self.masked_tokens)
        worked = self.rollout_share * used * self.sampled_tokens + (1 - self.rollout_share) * self.trained_tokens
        return min(self.trained_tokens, worked) / self.seconds

    @property
    def bound_throughput(self) -> float:
        """Tokens a second that total speed over the work of a token allows."""
        return self.node_seconds / self.seconds / self.floor_seconds

    @property
    def over_bound(self) -> float:
        """Throughput over its bound: 1 cannot be reached (in a short window what is half done at its ends blurs it by a
        percent)."""
        return self.throughput / self.bound_throughput

    @property
    def trained_throughput(self) -> float:
        """Trained tokens a second."""
        return self.trained_tokens / self.seconds

    @property
    def all_throughput(self) -> float:
        """The same over the whole run, its beginning included."""
        return self.all_tokens / self.all_seconds

    def mean(self, doing: Doing) -> float:
        """Share over all nodes."""
        return sum(each.get(doing, 0.0) for each in self.share.values()) / len(self.share)

    @property
    def busy_share(self) -> float:
        """Of all nodes' time, that in which they sample or train: as ``timed_figures.Figures.busy``, so neither hand-overs nor
        the loading of weights."""
        return self.mean(Doing.ROLLOUT) + self.mean(Doing.TRAIN)

    @property
    def least_busy_share(self) -> float:
        """The same of the node that was least busy, while it was there."""
        return min(each.get(Doing.ROLLOUT, 0.0) + each.get(Doing.TRAIN, 0.0) for each in self.share.values())

    @property
    def handover_share(self) -> float:
        return self.mean(Doing.HANDOVER)


class Account:
    """Told what nodes do and what becomes of tokens."""

    def __init__(self, *, with_spans: bool) -> None:
        self.with_spans = with_spans
        self.spans: list[Span] = []
        self.depths: list[Depths] = []
        self.staleness: Counter[int] = Counter()
        self.trained = self.masked = self.all_trained = 0
        self.reprefilled = self.moved = self.unsaid = self.wrong = 0
        self.prefilled_again = 0
        """Since the warm-up: ``reprefilled``."""
        self.asked_again = self.found_again = 0
        """Tokens of earlier turns that later turns brought, and those found in a cache."""
        self.sampled = 0
        self.rollout_floor = self.train_floor = 0.0
        self.floor_tokens = 0
        """Node-seconds that the groups of steps take at least, and their sampled tokens."""
        self.began = 0.0
        self.step_times: list[float] = []
        self._doing: dict[str, tuple[Doing, float]] = {}
        self._totals: dict[str, dict[Doing, float]] = {}

    def does(self, node: str, doing: Doing | None, now: float) -> None:
        """A node does this from now on; None: it is gone."""
        before = self._doing.get(node)
        if before is not None:
            if before[0] is doing:
                return
            self._close(node, before, now)
        if doing is None:
            self._doing.pop(node, None)
        else:
            self._doing[node] = (doing, now)

    def _close(self, node: str, before: tuple[Doing, float], now: float) -> None:
        doing, since = before
        if now > since:
            totals = self._totals.setdefault(node, dict.fromkeys(Doing, 0.0))
            totals[doing] += now - since
            if self.with_spans:
                self.spans.append(Span(node, doing, since, now))

    def cut(self, now: float) -> None:
        """What nodes do is counted up to now."""
        for node, before in self._doing.items():
            self._close(node, before, now)
            self._doing[node] = (before[0], now)

    def begin(self, now: float) -> None:
        """The warm-up is over: count from here."""
        self.cut(now)
        self._totals.clear()
        self.staleness.clear()
        self.trained = self.masked = self.sampled = self.prefilled_again = 0
        self.rollout_floor = self.train_floor = 0.0
        self.floor_tokens = 0
        self.began = now

    @property
    def node_seconds(self) -> float:
        """Of all nodes since the warm-up."""
        return sum(sum(totals.values()) for totals in self._totals.values())

    def seconds(self, doing: Doing) -> float:
        """Of all nodes since the warm-up."""
        return sum(totals[doing] for totals in self._totals.values())

    def fed_again(self, tokens: int) -> None:
        """An engine is to prefill what some engine had."""
        self.reprefilled += tokens
        self.prefilled_again += tokens

    def shares(self) -> dict[str, dict[Doing, float]]:
        return {
            node: {doing: seconds / sum(totals.values()) for doing, seconds in totals.items()}
            for node, totals in sorted(self._totals.items())
        }
