"""The heart: an event in, what has to be said out, for all episodes of some shards.

Feeding the journal's events in order gives the state; there is no other state. Each consequence has one owner, the event
whose handling may be acknowledged only when the consequence is stored, and applying the owner again gives it again:

    CallRequested    ─▶ GenerationRequested, or CallAnswered with 400, or with 409 after the episode's end
    GenerationEnded  ─▶ CallAnswered
    EpisodeEnded     ─▶ CallAnswered with 409 for every open call, then SamplesReady or EpisodeEvaluated

Another event may give it earlier (the last missing segment completes an answer). What cannot be judged because older
events have not come is remembered and raises NotYet, so that its owner stays in the queue. What can never be judged is
dead-lettered by the service, and ``give_up`` gives what is said instead.
An ended episode keeps what its events would say for a while, then only its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from seamlessflow.contracts import (
    CallAnswered,
    CallError,
    CallRequested,
    EpisodeEnded,
    EpisodeEvaluated,
    EpisodeStatus,
    Event,
    GenerationEnded,
    SamplesReady,
    SegmentSampled,
)
from seamlessflow.errors import Unavailable

from .answers import call_refused, refusal
from .call import Call
from .episode import Episode
from .rendering import Renderer
from .samples import samples_of

NUM_REMEMBERED = 256
"""Ended episodes that can still repeat what they said; older ones are read again from the journal."""

ENDED = CallError(status=409, code="episode_ended", message="this episode is over; nothing more is sampled for it")


class NotYet(Unavailable):
    """Older events of the episode are missing; reading it again from the journal helps, and waiting may."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What an ended episode's events would say again."""

    closing: list[Event]
    answers: dict[str, CallAnswered]
    """Of calls that were complete before the end."""
    replies: dict[str, str]


class Manager:
    """See the module docstring. Pure: no clock, no bus."""

    def __init__(self, renderer: Renderer, max_context_tokens: int, num_remembered: int = NUM_REMEMBERED) -> None:
        self._renderer = renderer
        self._max_context_tokens = max_context_tokens
        self._num_remembered = num_remembered
        self._open: dict[str, Episode] = {}
        self._recent: OrderedDict[str, Finished] = OrderedDict()
        self._ended: set[str] = set()

    def apply(self, event: Event, *, settled: bool = False) -> list[Event]:
        """What an event leads to. Raises NotYet; with ``settled`` an episode's end is judged with what is there.

        Raises MalformedMessage for tokens that contradict accepted ones.
        """
        if isinstance(event, CallRequested):
            return self._on_call_requested(event)
        if isinstance(event, SegmentSampled):
            return self._on_segment_sampled(event)
        if isinstance(event, GenerationEnded):
            return self._on_generation_ended(event)
        if isinstance(event, EpisodeEnded):
            return self._on_episode_ended(event, settled)
        return []

    def give_up(self, event: Event) -> list[Event]:
        """What is said instead of an event's consequences when ``apply`` can never give them (it is dead-lettered).

        A call is answered with an error, an episode ends without samples; nobody waits for what will not come.
        """
        if isinstance(event, CallRequested):
            if event.episode in self._ended:
                return [refusal(event, call_refused(event.call))]
            return [self._open_episode(event.episode).give_up(event)]
        if isinstance(event, GenerationEnded):
            call = self.call(event.episode, event.generation)
            return [] if call is None else [self._open[event.episode].give_up(call.request)]
        if isinstance(event, EpisodeEnded):
            return self._end_without_samples(event)
        return []

    def forget(self, episode: str) -> None:
        """Drop all that is known of an episode, so that its events can be applied from the beginning."""
        self._open.pop(episode, None)
        self._recent.pop(episode, None)
        self._ended.discard(episode)

    def mark_ended(self, episodes: Iterable[str]) -> None:
        """Episodes whose end is known to be in the journal, without reading them."""
        self._ended.update(episodes)

    def has_ended(self, episode: str) -> bool:
        return episode in self._ended

    def reply_of(self, episode: str, call: str) -> str:
        """Where a call's answer is hinted to; empty when unknown."""
        if episode in self._open and call in self._open[episode].calls:
            return self._open[episode].calls[call].request.reply
        return self._recent[episode].replies.get(call, "") if episode in self._recent else ""

    def call(self, episode: str, call: str) -> Call | None:
        """A call of an open episode."""
        return self._open[episode].calls.get(call) if episode in self._open else None

    def episode(self, episode: str) -> Episode | None:
        """An open episode."""
        return self._open.get(episode)

    def _on_call_requested(self, event: CallRequested) -> list[Event]:
        if event.episode in self._ended:
            return [self._finished(event.episode).answers.get(event.call) or refusal(event, ENDED)]
        episode = self._open_episode(event.episode)
        consequences = episode.ask(event)
        if episode.calls[event.call].consequence is None:
            raise NotYet(f"call {event.call} of episode {event.episode} refers to messages or turns that have not come yet")
        return consequences

    def _open_episode(self, name: str) -> Episode:
        if name not in self._open:
            self._open[name] = Episode(self._renderer, self._max_context_tokens)
        return self._open[name]

    def _on_segment_sampled(self, event: SegmentSampled) -> list[Event]:
        if event.episode in self._ended:
            return []
        return self._episode_with(event).sampled(event)

    def _on_generation_ended(self, event: GenerationEnded) -> list[Event]:
        if event.episode in self._ended:
            answer = self._finished(event.episode).answers.get(event.generation)
            return [] if answer is None else [answer]
        consequences = self._episode_with(event).ended(event)
        if not consequences:
            raise NotYet(
                f"generation {event.generation} of episode {event.episode} has ended; some of its tokens have not come"
            )
        return consequences

    def _episode_with(self, event: SegmentSampled | GenerationEnded) -> Episode:
        episode = self._open.get(event.episode)
        if episode is None or event.generation not in episode.calls:
            raise NotYet(f"call {event.generation} of episode {event.episode} was sampled for and has not come yet")
        return episode

    def _finished(self, episode: str) -> Finished:
        if episode not in self._recent:
            # Only its name is left: whether a call was answered before the end is in the journal.
            raise NotYet(f"episode {episode} has ended, and what it said is no longer here")
        return self._recent[episode]

    def _on_episode_ended(self, event: EpisodeEnded, settled: bool) -> list[Event]:
        if event.episode in self._ended:
            return list(self._finished(event.episode).closing)
        episode = self._open.get(event.episode) or Episode(self._renderer, self._max_context_tokens)
        if not settled and (event.num_calls > len(episode.calls) or any(c.answer is None for c in episode.calls.values())):
            # Tokens of calls that are cut off count up to the end's place in the journal, whatever the order of delivery.
            raise NotYet(f"episode {event.episode} ends with open calls; its journal decides what they sampled")
        return self._close(event.episode, _finish(event, episode))

    def _end_without_samples(self, event: EpisodeEnded) -> list[Event]:
        if event.episode in self._recent:  # it was judged, and what it led to could not be said
            finished = self._recent[event.episode]
            return self._close(event.episode, replace(finished, closing=[_without_samples(each) for each in finished.closing]))
        episode = self._open.get(event.episode) or Episode(self._renderer, self._max_context_tokens)
        return self._close(event.episode, _finish(event, episode, has_samples=False))

    def _close(self, episode: str, finished: Finished) -> list[Event]:
        self._open.pop(episode, None)
        self._ended.add(episode)
        self._recent[episode] = finished
        while len(self._recent) > self._num_remembered:
            self._recent.popitem(last=False)
        return list(finished.closing)


def _without_samples(event: Event) -> Event:
    if not isinstance(event, SamplesReady):
        return event
    return event.model_copy(update={"samples": (), "num_undelivered": event.num_sampled})


def _finish(event: EpisodeEnded, episode: Episode, *, has_samples: bool = True) -> Finished:
    calls = episode.calls
    closing: list[Event] = [refusal(call.request, ENDED) for call in calls.values() if call.answer is None]
    unanswered = {name for name, call in calls.items() if call.answer is None or call.answer.error is not None}
    undelivered = {*event.undelivered, *unanswered} if has_samples else set(calls)
    closing.append(_judgement(event, episode, undelivered, has_samples=has_samples))
    answers = {name: call.answer for name, call in calls.items() if call.answer is not None}
    return Finished(closing, answers, {name: call.request.reply for name, call in calls.items()})


def _judgement(event: EpisodeEnded, episode: Episode, undelivered: set[str], *, has_samples: bool) -> Event:
    """SamplesReady or EpisodeEvaluated."""
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
    )
