"""Agents that take the time agents would take: in the agent-runner's place on the bus, many episodes as tasks of one process.

EpisodeOpened ─▶ EpisodeStarted ─▶ (CallRequested ─▶ CallAnswered ─▶ tool)… ─▶ EpisodeEnded with a reward
                                      messages as an agent would send them, lengths as the workload draws them
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog

from seamlessflow.bus.base import PROGRESS_SECONDS, Delivery, Subscription
from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeStarted,
    EpisodeStatus,
    Service,
    partition,
)
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import BusClosed, MalformedMessage, Unavailable
from seamlessflow.runtime import Context
from seamlessflow_agent_runner.gateway.answer_wait import AnswerProgress, Answers
from seamlessflow_agent_runner.gateway.sessions import digest

from .constants import OVERHEAD_TOKENS
from .timed_cell import ENV, Cell
from .timed_clock import seed_with_length
from .workloads import Turn

log = structlog.get_logger()

STARTING = 32
"""Episodes that begin at a time: thousands of messages in one breath, and the server takes us for dead."""
FILLER = "m"
"""One character is one token of the tiny tokenizer."""
REWARDS = 1000


class Players:
    """Plays every episode of the cell's run."""

    def __init__(self, context: Context, cell: Cell) -> None:
        self._context, self._cell, self._workload, self._scale = context, cell, cell.workload, cell.scale
        self._answers = Answers(context.bus, context.journal)
        self._held: set[Delivery] = set()
        self._starting = asyncio.Semaphore(STARTING)

    async def run(self) -> None:
        """Until stopped; episodes that still run are left to their fate."""
        await self._answers.open()
        subscription = await self._subscribe()
        try:
            await self._context.until_stopped(self._keep_alive())
        finally:
            subscription.set_credit(0)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            for delivery in list(self._held):
                with suppress(Unavailable):
                    await delivery.in_progress()

    async def _subscribe(self) -> Subscription:
        run = self._cell.run
        queue, name = queue_stream(Service.AGENT_RUNNER, run), consumer_name(Service.AGENT_RUNNER, ENV)
        return await self._context.bus.consume(queue, name, self._on_delivery, credit=self._cell.agents)

    async def _on_delivery(self, delivery: Delivery) -> None:
        self._held.add(delivery)
        try:
            opened = await self._context.handlers.open(delivery)
            if not isinstance(opened, EpisodeOpened):
                raise MalformedMessage(f"{delivery.subject}: expected an EpisodeOpened, got {type(opened).__name__}")
            await self._play(opened)
            await delivery.ack()
        except BusClosed:
            pass
        finally:
            self._held.discard(delivery)

    async def _play(self, opened: EpisodeOpened) -> None:
        journal, runner = self._context.journal, self._context.settings.instance
        async with self._starting:
            started = await journal.publish(EpisodeStarted(run=opened.run, episode=opened.episode, runner=runner))
        if started is None or started.duplicate:
            status, num_calls, num_tokens = EpisodeStatus.RUNNER_LOST, 0, 0
        else:
            status, num_calls, num_tokens = await self._turns(opened)
        await journal.publish(
            EpisodeEnded(
                run=opened.run,
                episode=opened.episode,
                shard=opened.shard,
                origin=opened.origin,
                status=status,
                reward=_reward(opened) if status is EpisodeStatus.COMPLETED else None,
                num_calls=num_calls,
                sampled_tokens=num_tokens,
            )
        )

    async def _turns(self, opened: EpisodeOpened) -> tuple[EpisodeStatus, int, int]:
        origin, progress = opened.origin, float(opened.data["progress"])
        episode = Conversation(opened, self._answers.inbox)
        for number, turn in enumerate(self._workload.episode(origin.task, origin.index, progress)):
            new, sampled = self._scale.data_tokens(turn.new), self._scale.data_tokens(turn.sampled)
            asked = episode.ask(number, new, sampled)
            answer = await self._answer(asked)
            if answer.error is not None:
                log.debug("call.refused", episode=opened.episode, code=answer.error.code)
                return EpisodeStatus.AGENT_FAILED, number + 1, episode.num_tokens
            episode.hear(answer)
            await self._work(turn)
        return EpisodeStatus.COMPLETED, episode.num_calls, episode.num_tokens

    async def _answer(self, asked: CallRequested) -> CallAnswered:
        waiter = self._answers.expect(asked, AnswerProgress())
        try:
            stored = await self._context.journal.publish(asked)
            return await self._answers.answer(waiter, 0 if stored is None else stored.seq)
        finally:
            self._answers.forget(waiter)

    async def _work(self, turn: Turn) -> None:
        if turn.tool_seconds:
            await asyncio.sleep(self._scale.real_seconds(turn.tool_seconds))


class Conversation:
    """The messages of one episode, each sent once."""

    def __init__(self, opened: EpisodeOpened, reply: str) -> None:
        self._opened, self._reply = opened, reply
        self._digests: list[str] = []
        self._unseen: dict[str, Mapping[str, Any]] = {}
        self.num_calls = self.num_tokens = 0
        """Calls made, and tokens sampled for them."""

    def ask(self, number: int, new: int, sampled: int) -> CallRequested:
        """The next call: ``new`` tokens since the last answer, ``sampled`` to come."""
        opened, self.num_calls = self._opened, number + 1
        self._add({"role": "tool" if number else "user", "content": self._text(number, max(1, new - OVERHEAD_TOKENS))})
        unseen, self._unseen = self._unseen, {}
        return CallRequested(
            run=opened.run,
            episode=opened.episode,
            call=f"c{secrets.token_hex(12)}",
            shard=opened.shard,
            bucket=opened.bucket,
            origin=opened.origin,
            tag=opened.tag,
            messages=tuple(self._digests),
            unseen={key: dict(message) for key, message in unseen.items()},
            sampling=opened.sampling,
            min_weights_version=opened.min_weights_version,
            seed=seed_with_length(partition(f"{opened.episode}/{number}", 1 << 30), sampled),
            reply=self._reply,
        )

    def hear(self, answer: CallAnswered) -> None:
        """What the agent sends back as its own words next time."""
        self._add(answer.message)
        self.num_tokens += 0 if answer.usage is None else answer.usage.completion_tokens

    def _add(self, message: Mapping[str, Any]) -> None:
        key = digest(message)
        if key not in self._digests:
            self._unseen[key] = message
        self._digests.append(key)

    def _text(self, number: int, length: int) -> str:
        """The members of a group are asked the same; what a tool says is each one's own."""
        name = self._opened.origin.task if number == 0 else f"{self._opened.episode}/{number}"
        tag = f"{partition(name, 1 << 32):x}"
        return (tag + FILLER * length)[:length]


def _reward(opened: EpisodeOpened) -> float:
    return partition(f"reward of {opened.episode}", REWARDS) / REWARDS
