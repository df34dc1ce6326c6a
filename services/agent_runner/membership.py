"""One run that this runner is part of: its queues, its running episodes, and leaving it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import structlog

from seamlessflow.bus.base import Delivery, Subscription
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStatus, Service
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.run_config import RunConfig
from seamlessflow.runtime import Context, keep_alive

from .agents import BARE, Verdict, base_environment, kind_of
from .config import RunnerSettings
from .credits import shared_credits
from .episodes import Episode, Surroundings, ended
from .launch import NotStarted
from .rewards import Judge

log = structlog.get_logger()

RETRY_SECONDS = 1.0


class Membership:
    """Pulls the episodes of a run's environment tags, as many at a time as the run allows."""

    def __init__(self, context: Context, settings: RunnerSettings, around: Surroundings, run: str, config: RunConfig) -> None:
        self.run, self._config, self._context, self._around = run, config, context, around
        self._subscriptions: dict[str, Subscription] = {}
        self._running: dict[str, tuple[asyncio.Task[None], Episode]] = {}
        self._held: Counter[str] = Counter()
        """Deliveries in our hands, by environment tag."""
        self._partings: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._judges = {
            agent.env: Judge(
                agent.reward,
                config.tasks.dataset,
                base_environment(agent.environment, importing=True),
                answer_seconds=settings.verifier_seconds,
                start_seconds=settings.verifier_start_seconds,
            )
            for agent in config.agents
        }

    async def hold(self, envs: Iterable[str]) -> None:
        """Pull for exactly these environment tags from now on; agents of the others run to their end."""
        wanted = set(envs)
        for env in set(self._subscriptions) - wanted:
            parting = asyncio.create_task(self._subscriptions.pop(env).leave())
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)
        new = wanted - set(self._subscriptions)
        await asyncio.gather(*(self._warm(env) for env in new))
        for env in new:
            self._subscriptions[env] = await self._context.bus.consume(
                queue_stream(Service.AGENT_RUNNER, self.run),
                consumer_name(Service.AGENT_RUNNER, env),
                partial(self._on_delivery, env),
                credit=0,
            )
        self._share_credit()

    async def leave(self) -> None:
        """Pull nothing more, end all agents, and say so of each."""
        self._is_leaving = True
        for subscription in self._subscriptions.values():
            subscription.set_credit(0)
        for _, episode in self._running.values():
            episode.stop()
        await asyncio.gather(*(s.leave() for s in self._subscriptions.values()), *self._partings)
        await asyncio.gather(*(judge.close() for judge in self._judges.values()))

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def _warm(self, env: str) -> None:
        """Import what the first episode would otherwise wait for. What is wrong is said by that episode."""
        agent = self._config.agent(env)
        if agent is None:
            return
        with suppress(NotStarted):
            await asyncio.gather(self._around.nursery.zygote(kind_of(agent)), self._judges[env].warm())
            if agent.command is None:
                await self._around.nursery.zygote(BARE)

    def _share_credit(self) -> None:
        if self._is_leaving:
            return
        held = {env: self._held[env] for env in self._subscriptions}
        elsewhere = self._held.total() - sum(held.values())
        for env, credit in shared_credits(held, self._config.fleet.agents - elsewhere).items():
            self._subscriptions[env].set_credit(credit)
        self._context.presence.update(state=f"{len(self._running)} agents of run {self.run}")

    async def _on_delivery(self, env: str, delivery: Delivery) -> None:
        self._held[env] += 1
        self._share_credit()
        pings = asyncio.create_task(keep_alive(delivery))
        try:
            await self._end_delivery(delivery)
        finally:
            pings.cancel()
            self._held[env] -= 1
            self._share_credit()

    async def _end_delivery(self, delivery: Delivery) -> None:
        try:
            opened = await self._context.inbox.open(delivery)
            if not isinstance(opened, EpisodeOpened):
                raise BadInput(f"{delivery.subject}: expected EpisodeOpened, got {type(opened).__name__}")
            if await self._is_done(opened):
                await delivery.ack()
            else:
                await delivery.nak(RETRY_SECONDS)
        except BadInput as wrong:
            await self._context.inbox.bury(delivery, str(wrong))
        except Unavailable as wrong:
            log.warning("episode.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)

    async def _is_done(self, opened: EpisodeOpened) -> bool:
        """Run it, or wait for it when it runs here already. False: somebody else should, we are leaving or full."""
        if opened.episode not in self._running:
            if self._is_leaving or len(self._running) >= self._config.fleet.agents:
                return False
            agent = self._config.agent(opened.env)
            if agent is None:
                verdict = Verdict(EpisodeStatus.NOT_STARTED, f"the run has no agent for environment tag {opened.env!r}")
                await self._context.speaker.say(ended(opened, verdict))
                return True
            episode = Episode(self._around, opened, agent, self._judges[opened.env], self._config.model.name)
            task = asyncio.create_task(self._run(opened, episode), name=f"episode {opened.episode}")
            self._running[opened.episode] = (task, episode)
        await asyncio.shield(self._running[opened.episode][0])
        return True

    async def _run(self, opened: EpisodeOpened, episode: Episode) -> None:
        try:
            if await self._context.speaker.first(EpisodeEnded, opened.run, episode=opened.episode) is None:
                await episode.run()
        finally:
            del self._running[opened.episode]
