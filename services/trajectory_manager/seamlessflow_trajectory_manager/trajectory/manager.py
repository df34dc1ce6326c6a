"""The heart: an event in, what has to be said out, for all episodes of some shards.

Feeding the journal's events in order gives the state; there is no other state. Each consequence has one owner, the event
whose handling may be acknowledged only when the consequence is stored, and applying the owner again gives it again:

    CallRequested    ─▶ GenerationRequested, or CallAnswered with 400, or with 409 after the episode's end
    SegmentSampled   ─▶ CallAnswered, where it is the last one and says so
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

from seamlessflow.contracts import CallRequested, EpisodeEnded, Event, GenerationEnded, SegmentSampled
from seamlessflow.errors import Unavailable
from seamlessflow_trajectory_manager.rendering.base import Renderer, Terms

from .call import Call, End
from .call_answers import call_refused, refusal
from .episode import Episode
from .episode_end import ENDED, Ending, Finished
from .prompt_plan import HistoryMode
from .tree import Tree

__all__ = ["ENDED", "Manager", "NotYet"]

NUM_REMEMBERED = 256
"""Ended episodes that can still repeat what they said; older ones are read again from the journal."""
REMEMBERED_TOKENS = 2_000_000
"""Tokens that their trees may hold together; the last one stays whatever its size."""


class NotYet(Unavailable):
    """Older events of the episode are missing; reading it again from the journal helps, and waiting may."""


class Manager:
    """See the module docstring. Pure: no clock, no bus."""

    def __init__(
        self,
        renderer: Renderer,
        max_context_tokens: int,
        history: HistoryMode = "as_sampled",
        *,
        num_remembered: int = NUM_REMEMBERED,
        remembered_tokens: int = REMEMBERED_TOKENS,
    ) -> None:
        self._renderer = renderer
        self._max_context_tokens = max_context_tokens
        self._history = history
        self._num_remembered, self._remembered_tokens = num_remembered, remembered_tokens
        self._open: dict[str, Episode] = {}
        self._recent: OrderedDict[str, Finished] = OrderedDict()
        self._ended: set[str] = set()

    def apply(self, event: Event, *, settled: bool = False) -> list[Event]:
        """What an event leads to. Raises NotYet; with ``settled`` an episode's end is judged with what is there.

        Raises MalformedMessage for tokens that contradict accepted ones.
        """
        if isinstance(event, CallRequested):
            return self._on_call_requested(event)
        if isinstance(event, SegmentSampled | GenerationEnded):
            return self._on_sampled(event)
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
        if isinstance(event, SegmentSampled | GenerationEnded) and End.of(event) is not None:
            call = self.call(event.episode, event.generation)
            return [] if call is None else [self._open[event.episode].give_up(call.request)]
        if isinstance(event, EpisodeEnded):
            return self._end_without_samples(event)
        return []

    def ending(self, event: EpisodeEnded, *, settled: bool = False) -> Ending | None:
        """What ``apply`` would judge of an end, for ``close``; None: it is judged already. Raises NotYet as ``apply`` does.

        In between the judgement may be made in another thread, while no other event of the episode is applied.
        """
        if event.episode in self._ended:
            return None
        episode = self._open.get(event.episode) or self._new_episode()
        is_open = event.num_calls > len(episode.calls) or any(not call.is_answered for call in episode.calls.values())
        if is_open and not settled:
            # Tokens of calls that are cut off count up to the end's place in the journal, whatever the order of delivery.
            raise NotYet(f"episode {event.episode} ends with open calls; its journal decides what they sampled")
        return Ending(event, episode)

    def close(self, ending: Ending, judgement: Event) -> list[Event]:
        """The consequences of an end, whose ``judge`` gave the judgement; from here on the episode has ended."""
        finished = Finished([*ending.refusals(), judgement], ending.episode, ending.num_tokens)
        return self._remember(ending.event.episode, finished)

    def finished_tree(self, episode: str) -> Tree | None:
        """The tree of an episode that has ended not long ago. None: it is no longer here."""
        return self._recent[episode].episode.tree if episode in self._recent else None

    def drop(self) -> None:
        """Forget everything: its shard is left. Trees go at once, as nothing else refers to them."""
        self._open.clear()
        self._recent.clear()
        self._ended.clear()

    def empty(self) -> Manager:
        """Another one of the same run that has heard nothing, to fold an episode's journal into; see ``adopt``."""
        return Manager(self._renderer, self._max_context_tokens, self._history)

    def adopt(self, episode: str, folded: Manager) -> None:
        """Put what another manager has of an episode in the place of what is here."""
        self._open.pop(episode, None)
        self._recent.pop(episode, None)
        self._ended.discard(episode)
        if episode in folded._open:
            self._open[episode] = folded._open[episode]
        elif episode in folded._recent:
            self._remember(episode, folded._recent[episode])

    def mark_ended(self, episodes: Iterable[str]) -> None:
        """Episodes whose end is known to be in the journal, without reading them."""
        self._ended.update(episodes)

    def has_ended(self, episode: str) -> bool:
        return episode in self._ended

    def reply_of(self, episode: str, call: str) -> str:
        """Where a call's answer is hinted to; empty when unknown."""
        if episode in self._open and call in self._open[episode].calls:
            return self._open[episode].calls[call].request.reply
        return self._recent[episode].reply(call) if episode in self._recent else ""

    def call(self, episode: str, call: str) -> Call | None:
        """A call of an open episode."""
        return self._open[episode].calls.get(call) if episode in self._open else None

    @property
    def renderer(self) -> Renderer:
        return self._renderer

    def terms_of(self, call: Call) -> Terms:
        """How a planned call of an open episode is read."""
        return self._open[call.request.episode].terms_of(call)

    def episode(self, episode: str) -> Episode | None:
        """An open episode."""
        return self._open.get(episode)

    def _on_call_requested(self, event: CallRequested) -> list[Event]:
        if event.episode in self._ended:
            return [self._finished(event.episode).answer(event.call) or refusal(event, ENDED)]
        episode = self._open_episode(event.episode)
        consequences = episode.ask(event)
        if not episode.is_planned(event.call):
            raise NotYet(f"call {event.call} of episode {event.episode} refers to messages or turns that have not come yet")
        return consequences

    def _open_episode(self, name: str) -> Episode:
        if name not in self._open:
            self._open[name] = self._new_episode()
        return self._open[name]

    def _new_episode(self) -> Episode:
        return Episode(self._renderer, self._max_context_tokens, self._history)

    def _on_sampled(self, event: SegmentSampled | GenerationEnded) -> list[Event]:
        has_ended = End.of(event) is not None
        if event.episode in self._ended:
            answer = self._finished(event.episode).answer(event.generation) if has_ended else None
            return [] if answer is None else [answer]
        consequences = self._episode_with(event).sampled(event)
        if has_ended and not consequences:
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
        ending = self.ending(event, settled=settled)
        if ending is None:
            return list(self._finished(event.episode).closing)
        return self.close(ending, ending.judge())

    def _end_without_samples(self, event: EpisodeEnded) -> list[Event]:
        if event.episode in self._recent:  # it was judged, and what it led to could not be said
            return self._remember(event.episode, self._recent[event.episode].without_samples())
        ending = Ending(event, self._open.get(event.episode) or self._new_episode(), has_samples=False)
        return self.close(ending, ending.judge())

    def _remember(self, episode: str, finished: Finished) -> list[Event]:
        self._open.pop(episode, None)
        self._ended.add(episode)
        self._recent[episode] = finished
        num_tokens = sum(each.num_tokens for each in self._recent.values())
        while len(self._recent) > self._num_remembered or (num_tokens > self._remembered_tokens and len(self._recent) > 1):
            _, oldest = self._recent.popitem(last=False)
            num_tokens -= oldest.num_tokens
        return list(finished.closing)
