"""A simulated rollout-worker: generations on the engine model, weights loaded under them, contexts kept between turns. Pure.

What it samples is booked under the weights that were loaded then: at the end of a generation, when it is interrupted, and
whenever weights change. How many new episodes it takes is the worker's own judgement (``contexts``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from seamlessflow_rollout_worker.generations.context_budget import Contexts

from .constants import LONGEST_CONTEXT, UNSAID_SECONDS
from .cost import Cost
from .engine_model import Engine
from .simulator_account import Account
from .simulator_clock import Clock
from .simulator_episodes import Episode
from .simulator_losses import Effort


class Home(Protocol):
    """What a sampler asks of its node and of the run."""

    weights_version: int
    partial_rollout: bool

    def turn_done(self, episode: Episode) -> None: ...
    def look(self, sampler: Sampler) -> None: ...


class Sampler:
    """``open`` and ``close`` when the device comes and goes; ``take`` gives it a generation; ``noted`` hears of changes."""

    def __init__(self, name: str, clock: Clock, account: Account, cost: Cost, home: Home, slots: int) -> None:
        self.name = name
        self.pulls = self.is_loading = self.is_lent = False
        self._clock, self._account, self._cost, self._home, self._slots = clock, account, cost, home, slots
        self._engine = Engine(cost, slots=slots)
        self._version = -1
        self._is_open = self._wants_load = False
        self._loads = 0
        self._due: float | None = None
        self._here: dict[str, Episode] = {}
        self._marked: dict[str, int] = {}
        """Tokens of a generation that were booked."""
        self._booked = 0
        """Tokens that were said, or were lost unsaid."""
        self._kept: OrderedDict[str, int] = OrderedDict()
        """Context of episodes between two turns, in the engine's cache; oldest first."""
        self._kept_tokens = 0
        self.owned: tuple[int, ...] = ()
        """Affinity buckets of its newest lease, as the queue counts them."""
        self._contexts = Contexts(slots, cache_tokens=cost.kv_tokens, longest_context=LONGEST_CONTEXT)

    @property
    def room(self) -> int:
        """How many new episodes it would take now."""
        return min(self.credit, self._contexts.room)

    @property
    def credit(self) -> int:
        """How many more generations it would take now."""
        if not self.pulls:
            return 0
        if not self._home.partial_rollout and self._version < self._home.weights_version:
            return 0  # what begins now begins with the newest weights
        return self._slots - len(self._here)

    @property
    def is_busy(self) -> bool:
        return bool(self._here)

    @property
    def unaccounted(self) -> int:
        """Tokens that its engine sampled and nobody knows of: 0."""
        running = sum(self._engine.sampled(name) - self._marked[name] for name in self._engine.requests)
        return self._engine.sampled_tokens - self._booked - running

    @property
    def effort(self) -> Effort:
        """What its engine did, up to the last ``book``."""
        return Effort(self._engine.num_steps, self._engine.sampled_tokens)

    def open(self) -> None:
        """The device is there, with the newest weights."""
        self._is_open = True
        self._version = self._home.weights_version
        self._engine.resume()
        self._engine.advance(self._clock.now)

    def close(self) -> list[Episode]:
        """The device goes: returns the generations that were here, with what they have so far."""
        self._catch_up()
        for name, tokens in self._engine.interrupt_all().items():
            self._book(name, tokens)
        return self._forget_all()

    def die(self) -> list[Episode]:
        """The process is killed: the same, but what was sampled last was not said."""
        self._catch_up()
        step = self._cost.step_seconds(max(1, len(self._here)), 0)
        for name, tokens in self._engine.interrupt_all().items():
            said = max(self._marked[name], tokens - int(UNSAID_SECONDS / step))
            self._account.unsaid += tokens - said
            self._booked += tokens - said
            self._book(name, said)
        return self._forget_all()

    def take(self, episode: Episode) -> None:
        """A generation goes on here, from its prompt and what was sampled so far."""
        self._catch_up()
        prompt, turn = episode.context + episode.done, episode.turns[episode.index]
        cached = min(self._use(episode.name), prompt)
        old = prompt - (0 if episode.has_moved else turn.new)
        self._account.fed_again(max(0, old - cached))
        if not episode.has_moved and episode.index:
            self._account.asked_again += old
            self._account.found_again += min(old, cached)
        episode.has_moved = True
        episode.next_bucket = self._contexts.begins(episode.name, episode.bucket, prompt, self.owned)
        self._here[episode.name] = episode
        self._marked[episode.name] = 0
        self._engine.add(episode.name, prompt=prompt, tokens=episode.left, cached=cached)
        self._schedule()
        self.noted()

    def new_weights(self) -> None:
        """They are on this machine: load them, when nothing runs any more if running generations are not to be touched."""
        if not self._is_open or self._version >= self._home.weights_version:
            return
        self._wants_load = True
        if not self.is_loading and (self._home.partial_rollout or not self._here):
            self._catch_up()
            self.is_loading = True
            self._engine.pause()
            self._loads += 1
            self.noted()
            self._clock.after(self._cost.load_seconds, self._loaded, self._home.weights_version, self._loads)

    def book(self) -> None:
        """Count what was sampled up to now, under the weights it was sampled with."""
        self._catch_up()
        for name in self._engine.requests:
            self._book(name, self._engine.sampled(name))

    def forget_ended(self, has_ended: Callable[[str], bool]) -> None:
        """Ask of episodes that call for nothing whether they have ended, as a worker does now and then."""
        before = self._contexts.num_held
        for name in self._contexts.to_look_for(self._clock.now):
            if has_ended(name):
                self._contexts.over(name)
        if self._contexts.num_held < before:
            self._home.look(self)

    def noted(self) -> None:
        """What the device does may have changed; its node sets this."""

    def _forget_all(self) -> list[Episode]:
        gone = list(self._here.values())
        for name in self._here:
            self._contexts.left(name)
        self._contexts.clear()
        self._here.clear()
        self._marked.clear()
        self._forget_cache()
        self._is_open = self.is_loading = self._wants_load = False
        return gone

    def _loaded(self, version: int, load: int) -> None:
        if not self.is_loading or load != self._loads:
            return  # the device was given up meanwhile
        self.book()
        self._forget_cache()
        self._version = version
        self.is_loading = self._wants_load = False
        self._engine.resume()
        self._schedule()
        self.noted()
        self._home.look(self)
        self.new_weights()

    def _catch_up(self) -> None:
        for done in self._engine.advance(self._clock.now):
            episode = self._here[done.request]
            self._book(done.request, done.tokens)
            del self._here[done.request], self._marked[done.request]
            self._keep(episode)
            self._contexts.sampled(episode.name, episode.context + episode.done, self._clock.now)
            episode.bucket = episode.next_bucket
            self._home.turn_done(episode)

    def _fire(self, due: float) -> None:
        if self._due != due:
            return
        self._due = None
        before = len(self._here)
        self._catch_up()
        if len(self._here) < before:
            self._home.look(self)
            if self._wants_load:
                self.new_weights()
        self._schedule()
        self.noted()

    def _schedule(self) -> None:
        due = self._engine.next_completion()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._clock.at(due, self._fire, due)

    def _book(self, name: str, tokens: int) -> None:
        """So many tokens of a generation were sampled here in all; what is new of them is under the present weights."""
        news = tokens - self._marked[name]
        self._marked[name] = tokens
        self._here[name].sampled(news, self._version)
        self._account.sampled += news
        self._booked += news

    def _keep(self, episode: Episode) -> None:
        """The context of a turn stays for the next one, as long as there is room beside what runs."""
        if len(episode.turns) == 1:
            return
        self._kept[episode.name] = held = episode.context + episode.done
        self._kept_tokens += held
        room = self._cost.kv_tokens - self._engine.reserved
        while self._kept and self._kept_tokens > room:
            self._kept_tokens -= self._kept.popitem(last=False)[1]

    def _use(self, name: str) -> int:
        held = self._kept.pop(name, 0)
        self._kept_tokens -= held
        return held

    def _forget_cache(self) -> None:
        self._kept.clear()
        self._kept_tokens = 0
