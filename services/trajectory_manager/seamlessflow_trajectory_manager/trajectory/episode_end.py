"""The end of an episode: what its open calls are answered, and what it comes to. Pure.

Making samples of a large tree takes a while, so it is a step of its own (``Ending.judge``) that may be taken in another
thread: nothing changes the tree any more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from seamlessflow.contracts import CallAnswered, CallError, EpisodeEnded, EpisodeEvaluated, EpisodeStatus, Event, SamplesReady

from .call_answers import refusal
from .episode import Episode
from .samples import samples_of

ENDED = CallError(status=409, code="episode_ended", message="this episode is over; nothing more is sampled for it")


@dataclass(frozen=True, slots=True)
class Ending:
    """An end that can be judged. ``has_samples`` False: it was given up, and gives none."""

    event: EpisodeEnded
    episode: Episode
    has_samples: bool = True

    @property
    def num_tokens(self) -> int:
        """Stored in the tree."""
        return sum(turn.num_tokens for turn in self.episode.tree)

    def refusals(self) -> list[CallAnswered]:
        """To the calls that have no answer."""
        return [refusal(call.request, ENDED) for call in self.episode.calls.values() if not call.is_answered]

    def judge(self) -> Event:
        """SamplesReady or EpisodeEvaluated. Changes nothing."""
        return _judgement(self.event, self.episode, self._undelivered(), has_samples=self.has_samples)

    def _undelivered(self) -> Collection[str]:
        calls = self.episode.calls
        if not self.has_samples:
            return set(calls)
        unanswered = (name for name, call in calls.items() if not call.is_answered or call.refusal is not None)
        return {*self.event.undelivered, *unanswered}


@dataclass(frozen=True, slots=True)
class Finished:
    """What an ended episode's events would say again."""

    closing: list[Event]
    episode: Episode
    """For answers that were given before the end."""
    num_tokens: int

    def without_samples(self) -> Finished:
        """The same, given up."""
        return Finished([_without_samples(event) for event in self.closing], self.episode, self.num_tokens)

    def answer(self, call: str) -> CallAnswered | None:
        """Of a call that was complete before the end."""
        return self.episode.answer(call) if call in self.episode.calls else None

    def reply(self, call: str) -> str:
        """Where a call's answer is hinted to; empty when unknown."""
        return self.episode.calls[call].request.reply if call in self.episode.calls else ""


def _without_samples(event: Event) -> Event:
    if not isinstance(event, SamplesReady):
        return event
    return event.model_copy(update={"samples": (), "num_undelivered": event.num_sampled})


def _judgement(event: EpisodeEnded, episode: Episode, undelivered: Collection[str], *, has_samples: bool) -> Event:
    runs = {name: episode.runs_of(name) for name in episode.calls}
    sampled = {name: sum(count for _, count in each) for name, each in runs.items()}
    if event.origin.evaluation is not None:
        return EpisodeEvaluated(
            run=event.run,
            episode=event.episode,
            origin=event.origin,
            status=event.status,
            reward=event.reward,
            num_sampled=sum(sampled.values()),
            weights_versions=tuple(sorted({version for each in runs.values() for version, count in each if count})),
        )
    trainable = has_samples and event.status is EpisodeStatus.COMPLETED
    return SamplesReady(
        run=event.run,
        episode=event.episode,
        origin=event.origin,
        status=event.status,
        reward=event.reward,
        samples=samples_of(episode.tree, undelivered) if trainable else (),
        num_sampled=sum(sampled.values()),
        num_undelivered=sum(sampled.get(name, 0) for name in undelivered),
        num_roots=episode.tree.num_roots,
        num_forks=episode.tree.num_forks,
        fork_causes=episode.tree.fork_causes,
        reprefilled_tokens=episode.tree.reprefilled_tokens,
    )
