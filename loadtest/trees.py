"""The trajectory-manager's own cost, without bus and engine: bytes for each stored token, and rendering as a chat grows.

The manager hears what a journal would tell it: events are encoded and decoded again, as from the wire. ``grow`` holds many
episodes open at once; ``long_conversation`` times each call of one that becomes long. Figures for ``load:gateway``.
"""

from __future__ import annotations

import gc
import itertools
import random
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.report import Figure, arguments, publish
from seamlessflow.codec import decode, to_message
from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeOrigin,
    Event,
    Float32s,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    Sampling,
    SegmentSampled,
)
from seamlessflow.models.tiny import CHAT_TEMPLATE, make_tiny_tokenizer
from seamlessflow.runtime import GcControl
from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow_agent_runner.gateway.sessions import digest
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from seamlessflow_trajectory_manager.trajectory.manager import Manager

RUN = "trees"
NOISE_EVERY = 5
"""Calls between two pieces of fixed work."""
EVERYTHING = 1 << 30
"""Tokens of context: no prompt is too long."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a manager held at the end of ``grow``."""

    num_tokens: int
    """Stored: prompts and sampled."""
    num_bytes: int
    """That the process grew by."""
    packed_bytes: int
    """Of ids and logprobs alone."""
    call_seconds: list[float]
    """CPU time of the manager's work on each call: asked, sampled, ended."""

    noise_seconds: list[float]
    """Of a fixed piece of work in between: what the machine itself does to such a measurement."""

    @property
    def bytes_per_token(self) -> float:
        return self.num_bytes / self.num_tokens

    @property
    def slowest_over_median(self) -> float:
        return max(self.call_seconds) / median(self.call_seconds)

    @property
    def noise_over_median(self) -> float:
        return max(self.noise_seconds) / median(self.noise_seconds)


def tiny_renderer(*, whole: bool = False) -> TemplateRenderer:
    """The tiny model's tokenizer (a token for each character) and template. whole: rendered from the first message on."""
    made: Any = make_tiny_tokenizer()
    words = ChatTokenizer(made.backend_tokenizer, named={"eos_token": made.eos_token})
    assert words.eos_token_id is not None
    template = (WholeTemplate if whole else ChatTemplate)(CHAT_TEMPLATE, words.named)
    return TemplateRenderer(words, template, [words.eos_token_id])


class WholeTemplate(ChatTemplate):
    """Always renders the whole conversation."""

    def start(self, num_before: int) -> int:
        return 0


class Conversation:
    """One linear episode: an agent, a gateway that sends each message once, and an engine, all without a wait."""

    def __init__(self, manager: Manager, episode: str, settling: GcControl) -> None:
        self._manager, self._episode, self._settling = manager, episode, settling
        self._origin = EpisodeOrigin(group=episode, task=episode, env="load", index=0, attempt=0)
        self._stream = random.Random(episode)
        self._digests: list[str] = []
        self._answer: dict[str, Any] = {}
        self.num_tokens = 0
        self.stages: list[float] = []
        """Seconds of the last call's events: asked, sampled, ended."""
        self._calls = itertools.count()

    def turn(self, prompt: str, num_sampled: int) -> float:
        """One call from request to answer; returns the seconds the manager took."""
        self.stages.clear()
        (asked,) = self._tell(self._request({"role": "user", "content": prompt}))
        assert isinstance(asked, GenerationRequested)
        events = self._sample(asked, num_sampled)
        said = [each for event in events for each in self._tell(event)]
        (answer,) = said
        assert isinstance(answer, CallAnswered) and answer.usage is not None
        self._answer = answer.message
        self.num_tokens = answer.usage.prompt_tokens + answer.usage.completion_tokens
        return sum(self.stages)

    def _request(self, message: dict[str, Any]) -> CallRequested:
        new = [message] if not self._digests else [self._answer, message]
        unseen = {digest(each): each for each in new}
        self._digests += unseen
        return CallRequested(
            run=RUN,
            episode=self._episode,
            call=f"c{self._stream.getrandbits(64):016x}",
            shard=0,
            bucket=0,
            origin=self._origin,
            tag="rollout",
            messages=tuple(self._digests),
            unseen=unseen,
            sampling=Sampling(max_tokens=4096),
            seed=7,
            reply=f"_INBOX.{self._stream.getrandbits(88):022x}",
        )

    def _sample(self, asked: GenerationRequested, num_sampled: int) -> Iterator[Event]:
        words = "".join(self._stream.choices("abcdefghij klmnopqrstuvwxyz ", k=num_sampled - 1))
        ids = [*(_letter(letter) for letter in words), asked.stop_token_ids[0]]
        common = {"run": RUN, "episode": self._episode, "generation": asked.generation, "shard": 0, "nonce": "n1"}
        logprobs = Float32s([-self._stream.random() for _ in ids])
        yield SegmentSampled(
            start=0, token_ids=Int32s(ids), logprobs=logprobs, weights_version=3, finish=GenerationFinish.STOP, **common
        )

    def _tell(self, event: Event) -> list[Event]:
        message = to_message(event)
        heard = decode(message.subject, message.payload, dict(message.headers))
        began = time.thread_time()
        said = self._manager.apply(heard)
        self._settling.tick()
        self.stages.append(time.thread_time() - began)
        return said


def _letter(letter: str) -> int:
    """Its id in the tiny tokenizer: three special tokens, newline, then printable ASCII."""
    return ord(letter) - 32 + 4


def grow(num_episodes: int, num_turns: int = 20, num_sampled: int = 100) -> Held:
    """Open episodes, all held at once, turn by turn."""
    manager, settling = Manager(tiny_renderer(), EVERYTHING), GcControl()
    Conversation(manager, "warm", settling).turn("warm up", num_sampled)
    gc.collect()
    before = _resident_bytes()
    conversations = [Conversation(manager, f"g{number}-0-0", settling) for number in range(num_episodes)]
    seconds, noise = [], []
    for turn in range(num_turns):
        for number, each in enumerate(conversations):
            seconds.append(each.turn(f"{turn}: and then?", num_sampled))
            if number % NOISE_EVERY == 0:
                noise.append(_fixed_work())
    num_tokens = sum(each.num_tokens for each in conversations)
    del conversations  # the agents' own memory is not the manager's
    gc.collect()
    packed_bytes = 4 * num_tokens + 4 * num_episodes * num_turns * num_sampled
    return Held(num_tokens, _resident_bytes() - before, packed_bytes, seconds, noise)


def _fixed_work() -> float:
    """CPU seconds of something that always takes the same, about as long as a call."""
    began = time.thread_time()
    sum(number * number for number in range(4000))
    return time.thread_time() - began


def long_conversation(num_turns: int = 128, num_tokens: int = 69_000, *, whole: bool = False) -> list[float]:
    """CPU seconds that the manager took to ask for each generation of one conversation: matching and rendering."""
    conversation = Conversation(Manager(tiny_renderer(whole=whole), EVERYTHING), "long-0-0", GcControl())
    each = num_tokens // num_turns
    seconds = []
    for turn in range(num_turns):
        conversation.turn(f"{turn}: " + "and so on " * (each // 2 // 10), each // 2 - 40)
        seconds.append(conversation.stages[0])
    return seconds


def growth(seconds: list[float]) -> float:
    """Median of the last ten over the median of the first ten, the very first left out: it finds cold caches."""
    return median(seconds[-10:]) / median(seconds[1:11])


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def figures(num_episodes: int = 10_000, *, quick: bool = False, repeats: int = 3) -> dict[str, Figure]:
    """``memory_bytes_per_token`` and ``render_cost_growth_128_turns``, for ``load:gateway``. In processes of their own."""
    num_turns, num_tokens, growths = (24, 12_000, 1) if quick else (128, 69_000, repeats)
    held = _apart(grow, 100 if quick else num_episodes)
    ours = [growth(long_conversation(num_turns, num_tokens)) for _ in range(growths)]
    naive = [growth(long_conversation(num_turns, num_tokens, whole=True)) for _ in range(growths)]
    return {
        "memory_bytes_per_token": Figure(
            "bytes", "lower", [held.bytes_per_token], "ids and logprobs alone", [held.packed_bytes / held.num_tokens], goal=60
        ),
        "memory_slowest_call_over_median": Figure(
            "times", "lower", [held.slowest_over_median], "fixed work in between", [held.noise_over_median], goal=10
        ),
        "render_cost_growth_128_turns": Figure("times", "lower", ours, "the whole conversation each turn", naive, goal=2),
    }


def _apart(function: Callable[[int], Held], argument: int) -> Held:
    """In a fresh process: what this one freed before would be taken for nothing."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    options = parser.parse_args(argv)
    publish("trees", figures(options.episodes, quick=options.quick), options.results)


if __name__ == "__main__":
    main()
