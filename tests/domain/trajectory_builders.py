"""A small world around a manager: a tokenizer made on the spot, agents that ask, an engine that samples what it is told."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeEnded,
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    Float32s,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    SamplesReady,
    Sampling,
    SegmentSampled,
)
from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from tests.text.words import byte_level

RUN, EPISODE = "run-1", "g0-0-0"
ORIGIN = EpisodeOrigin(group="g0", task="t0", env="env", index=0, attempt=0)
MAX_CONTEXT_TOKENS = 2000

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "user\nassistant\nsystem\n",
    "the sum of three and four is seven\n\n",
    "what is 1 + 2 ?\n\n\n",
    "  hello   world ",
) * 16
CALC = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}


def tokenizer(num_merges: int = 0) -> ChatTokenizer:
    """Byte-level; with merges, neighbouring text is encoded differently apart than together."""
    return byte_level(num_merges, CORPUS, "<|im_start|>")


@cache
def renderer(template: str = CHATML, num_merges: int = 0) -> TemplateRenderer:
    words = tokenizer(num_merges)
    assert words.eos_token_id is not None
    return TemplateRenderer(words, ChatTemplate(template, words.named), [words.eos_token_id])


def manager(**options: Any) -> Manager:
    return Manager(renderer(), options.pop("max_context_tokens", MAX_CONTEXT_TOKENS), **options)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ids_of(text: str) -> list[int]:
    """What an engine samples to say ``text``; ``text`` may end in <|im_end|>."""
    return tokenizer().encode(text)


def digest_of(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


class Agent:
    """Asks as a gateway does: messages it has carried before go by digest."""

    def __init__(self, episode: str = EPISODE, max_tokens: int = 256) -> None:
        self.episode, self.max_tokens = episode, max_tokens
        self._carried: set[str] = set()
        self._numbers = itertools.count()

    def asks(self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None, **fields: Any) -> CallRequested:
        full: dict[str, dict[str, Any]] = {digest_of(message): message for message in messages}
        tools_digest = None if tools is None else digest_of(tools)
        if tools_digest is not None:
            full[tools_digest] = {"tools": tools}
        unseen = {digest: content for digest, content in full.items() if digest not in self._carried}
        self._carried |= set(unseen)
        given = {"call": f"c{next(self._numbers)}", "shard": 0, "bucket": 0, "tag": "rollout", "seed": 7, **fields}
        return CallRequested(
            run=RUN,
            episode=self.episode,
            origin=ORIGIN,
            messages=tuple(digest_of(message) for message in messages),
            unseen=unseen,
            tools=tools_digest,
            sampling=Sampling(max_tokens=self.max_tokens),
            **given,
        )

    def ends(self, status: EpisodeStatus = EpisodeStatus.COMPLETED, **fields: Any) -> EpisodeEnded:
        given = {"reward": 1.0 if status is EpisodeStatus.COMPLETED else None, "origin": ORIGIN, **fields}
        return EpisodeEnded(run=RUN, episode=self.episode, shard=0, status=status, **given)


class Engine:
    """Samples what it is told. Every token has a logprob of its own, by which it is found again in samples."""

    def __init__(self) -> None:
        self.fed: dict[str, list[int]] = {}
        """Prompt of each generation, put together as a worker does it: the parent's tokens, then the suffix."""
        self.sampled: dict[str, list[int]] = {}
        self.token_of: dict[float, tuple[str, int, int]] = {}
        """Logprob to (generation, token id, weights version)."""
        self._logprobs = itertools.count(1)

    def generates(
        self, request: GenerationRequested, said: str | list[int], *, cuts: Sequence[int] = (), version: int = 0
    ) -> list[Event]:
        """Claim, one segment between cuts (each under the next version), end, as a message of its own (else see ``joined``).

        Finish: length unless a stop token ends it.
        """
        ids = ids_of(said) if isinstance(said, str) else said
        ids = ids[: request.sampling.max_tokens]
        name = request.generation
        before = [] if request.parent is None else self.fed[request.parent] + self.sampled[request.parent]
        assert len(before) == request.parent_tokens
        self.fed[name], self.sampled[name] = before + list(request.suffix), ids
        common = {"run": RUN, "episode": request.episode, "generation": name, "shard": request.shard, "nonce": "n1"}
        events: list[Event] = [GenerationClaimed(worker="w", start=0, **common)]
        edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(ids)}), len(ids)]
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            logprobs = [-float(next(self._logprobs)) for _ in range(start, end)]
            self.token_of |= {lp: (name, i, version + number) for lp, i in zip(logprobs, ids[start:end], strict=True)}
            events.append(
                SegmentSampled(
                    start=start,
                    token_ids=Int32s(ids[start:end]),
                    logprobs=Float32s(logprobs),
                    weights_version=version + number,
                    **common,
                )
            )
        stopped = bool(ids) and ids[-1] in request.stop_token_ids
        finish = GenerationFinish.STOP if stopped else GenerationFinish.LENGTH
        events.append(GenerationEnded(finish=finish, num_tokens=len(ids), **common))
        return events


def joined(events: Sequence[Event]) -> list[Event]:
    """The same generation, its end said with its last segment."""
    *before, last, end = events
    assert isinstance(last, SegmentSampled) and isinstance(end, GenerationEnded)
    return [*before, last.model_copy(update={"finish": end.finish})]


class World:
    """One episode: an agent, an engine, a manager, and the journal between them."""

    def __init__(self, under_test: Manager | None = None, **agent: Any) -> None:
        self.manager = under_test or manager()
        self.agent, self.engine = Agent(**agent), Engine()
        self.journal: list[Event] = []

    def tells(self, event: Event, *, settled: bool = False) -> list[Event]:
        self.journal.append(event)
        said = self.manager.apply(event, settled=settled)
        self.journal.extend(said)
        return said

    def turn(
        self, messages: Sequence[dict[str, Any]], said: str | list[int], *, tools: list[Any] | None = None, **how: Any
    ) -> CallAnswered:
        """Ask and be answered. ``said``: what the engine samples; text without a stop token gets one."""
        (request,) = self.tells(self.agent.asks(messages, tools))
        assert isinstance(request, GenerationRequested)
        return self.answers(request, said, **how)

    def answers(self, request: GenerationRequested, said: str | list[int], **how: Any) -> CallAnswered:
        text = said + "<|im_end|>" if isinstance(said, str) and not how.pop("truncated", False) else said
        is_joined = how.pop("is_joined", False)
        events = self.engine.generates(request, text, **how)
        consequences = [each for event in (joined(events) if is_joined else events) for each in self.tells(event)]
        answer = consequences[0]
        assert isinstance(answer, CallAnswered)
        return answer

    def ends(self, **fields: Any) -> SamplesReady:
        ready = self.tells(self.agent.ends(**fields), settled=True)[-1]
        assert isinstance(ready, SamplesReady)
        return ready
