"""Episodes of a simulated run: an agent that takes its turns, and what was sampled for it under which version. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStatus
from seamlessflow.contracts.tags import is_long

from .constants import CONTROL_SECONDS
from .simulator_account import Account
from .simulator_clock import Clock
from .workloads import Turn


class Episode:
    """One attempt; at most one generation of it is under way."""

    __slots__ = (
        "ages",
        "bucket",
        "context",
        "done",
        "has_moved",
        "index",
        "is_long",
        "name",
        "next_bucket",
        "order",
        "origin",
        "shard",
        "turns",
        "waits",
    )

    def __init__(self, opened: EpisodeOpened, turns: tuple[Turn, ...], bucket: int) -> None:
        self.turns = turns
        self.name, self.bucket, self.shard, self.origin = opened.episode, bucket, opened.shard, opened.origin
        self.is_long = is_long(opened.tag, has_classes=True)
        self.next_bucket = bucket
        """Of its calls after this one."""
        self.index = 0
        self.context = turns[0].new
        """Tokens before the turn's answer."""
        self.done = 0
        """Of the turn's tokens, sampled and said."""
        self.ages: dict[int, int] = {}
        """Weights version to tokens sampled under it."""
        self.has_moved = False
        """Whether an engine held the whole context of this turn before."""
        self.order = 0
        """When it first asked; who is handed back keeps its place."""
        self.waits = False

    @property
    def left(self) -> int:
        return self.turns[self.index].sampled - self.done

    def sampled(self, tokens: int, version: int) -> None:
        """So many tokens were said."""
        if tokens:
            self.done += tokens
            self.ages[version] = self.ages.get(version, 0) + tokens


class Agents:
    """Agent-runners. ``ask`` is told of each turn, ``ended`` of each end. ``limit``: most episodes side by side, None: any.

    bucket_of: the affinity bucket of an episode, counted over all kinds of generations; negative for the unowned bucket.
    """

    def __init__(
        self,
        run: str,
        clock: Clock,
        account: Account,
        draw: Callable[[str, int], tuple[Turn, ...]],
        ask: Callable[[Episode], None],
        ended: Callable[[Episode, EpisodeEnded], None],
        bucket_of: Callable[[EpisodeOpened], int],
        limit: int | None = None,
    ) -> None:
        self._run, self._clock, self._account, self._draw = run, clock, account, draw
        self._ask, self._ended, self._bucket_of, self._limit = ask, ended, bucket_of, limit
        self._waiting: deque[EpisodeOpened] = deque()
        self.num_open = 0
        """Waiting ones included."""

    def open(self, opened: EpisodeOpened) -> None:
        """Start the agent, when one more may run; its first call follows."""
        self.num_open += 1
        if self._limit is not None and self.num_open - len(self._waiting) > self._limit:
            self._waiting.append(opened)
        else:
            self._start(opened)

    def _start(self, opened: EpisodeOpened) -> None:
        episode = Episode(opened, self._draw(opened.origin.task, opened.origin.index), self._bucket_of(opened))
        self._clock.after(CONTROL_SECONDS, self._ask, episode)

    def turn_done(self, episode: Episode) -> None:
        """All tokens of its turn were sampled: a tool works, or it ends."""
        turn = episode.turns[episode.index]
        self._account.wrong += abs(episode.done - turn.sampled)
        if episode.index + 1 == len(episode.turns):
            self._clock.after(CONTROL_SECONDS, self._end, episode)
            return
        self._clock.after(CONTROL_SECONDS + turn.tool_seconds, self._next_turn, episode)

    def _next_turn(self, episode: Episode) -> None:
        before = episode.turns[episode.index]
        episode.index += 1
        episode.context += before.sampled + episode.turns[episode.index].new
        episode.done = 0
        episode.has_moved = False
        self._clock.after(CONTROL_SECONDS, self._ask, episode)

    def _end(self, episode: Episode) -> None:
        self.num_open -= 1
        end = EpisodeEnded(
            run=self._run,
            episode=episode.name,
            shard=episode.shard,
            origin=episode.origin,
            status=EpisodeStatus.COMPLETED,
            reward=float(episode.origin.index % 2),
            num_calls=len(episode.turns),
            sampled_tokens=sum(turn.sampled for turn in episode.turns),
        )
        self._ended(episode, end)
        if self._waiting and (self._limit is None or self.num_open - len(self._waiting) < self._limit):
            self._start(self._waiting.popleft())
