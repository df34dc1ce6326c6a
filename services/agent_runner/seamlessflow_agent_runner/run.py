"""One run that this runner takes part in: its queues, the credit of each, and leaving it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from seamlessflow.bus.base import Delivery, Subscription
from seamlessflow.config.run import RunConfig
from seamlessflow.config.sampling_sections import REPORTED
from seamlessflow.contracts import EpisodeOpened, Service
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.runtime import Context, keep_alive

from .config import RunnerSettings
from .episodes import local_episode
from .episodes.agent_launch import BARE, base_environment, kind_of
from .episodes.episode_attempt import Surroundings
from .episodes.local_episode import InDoubt, RunningEpisodes
from .episodes.pinned_version import Pinning
from .episodes.rewards import Judge
from .external.episode_api import EpisodeApi, ServedRun
from .external.episode_queue import EpisodeQueue
from .processes.forkserver_client import NotStarted

log = structlog.get_logger()

RETRY_SECONDS = 1.0
_GATEWAY_ONLY = "this is a gateway, and their agents need a runner that starts them"


def shared_credits(running: Mapping[str, int], total: int) -> dict[str, int]:
    """Credit of each environment: what it runs now, plus its share of the free places.

    running: episodes being run, by environment tag. total: places of this runner.
    The credits sum to at most ``total`` (unless more runs already), so that each pulled episode has a place. The free
    places are dealt one by one to the environment that runs least: an idle queue keeps one, a busy one gets the rest. Pure.
    """
    credits = dict(running)
    free = max(0, total - sum(running.values()))
    order = sorted(running, key=lambda env: (running[env], env))
    for turn in range(free if order else 0):
        credits[order[turn % len(order)]] += 1
    return credits


def external_credits(
    held: Mapping[str, int], unclaimed: Mapping[str, int], missing: Mapping[str, int], total: int
) -> dict[str, int]:
    """Credit of each environment of external agents: its deliveries, plus one per waiting client while there are places.

    held: deliveries in hand. unclaimed: those of them that are no running episode. missing: deliveries that clients still
    wait for. total: places of this runner for external agents. Pure.
    """
    free = total - sum(held[env] - unclaimed[env] for env in held)
    credits = {}
    for env in held:
        more = max(0, min(missing[env], free))
        free -= more
        credits[env] = held[env] + more
    return credits


class RunnerRun:
    """Pulls the episodes of a run's environment tags, as many at a time as the run allows.

    For external agents: as many as clients wait for.
    """

    def __init__(
        self,
        context: Context,
        settings: RunnerSettings,
        around: Surroundings,
        episodes: EpisodeApi,
        run: str,
        config: RunConfig,
    ) -> None:
        self.run, self._config, self._context, self._around, self._episodes = run, config, context, around, episodes
        self._subscriptions: dict[str, Subscription] = {}
        self._queues: dict[str, EpisodeQueue] = {}
        """One for each environment of external agents."""
        self._held: Counter[str] = Counter()
        """Number of unfinished deliveries by environment tag."""
        self._departures: set[asyncio.Task[None]] = set()
        self._patrols: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._unserved = ""
        """Part of the shown state: environment tags that this runner cannot serve, and the reason."""
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
        slots = config.version_slots
        pinning = Pinning(context.journal, run, slots, self._set_versions) if slots else None
        self._running = RunningEpisodes(around, config, self._judges, pinning)

    async def hold(self, envs: Iterable[str]) -> None:
        """Pull for exactly these environment tags from now on; agents of the others run to their end."""
        wanted = {env for env in envs if self._can_serve(env)}
        if unserved := sorted(set(envs) - wanted):
            log.warning("run.partly_served", run=self.run, unserved=unserved, reason=_GATEWAY_ONLY)
        self._unserved = f"; not served: {', '.join(unserved)} ({_GATEWAY_ONLY})" if unserved else ""
        for env in set(self._subscriptions) - wanted:
            if (queue := self._queues.pop(env, None)) is not None:
                queue.close()
            self._keep(self._departures, self._subscriptions.pop(env).leave())
        new = wanted - set(self._subscriptions)
        await asyncio.gather(*(self._warm(env) for env in new))
        for env in new:
            agent = self._config.agent(env)
            if agent is not None and agent.external:
                self._queues[env] = EpisodeQueue(self._share_credit)
            self._subscriptions[env] = await self._context.bus.consume(
                queue_stream(Service.AGENT_RUNNER, self.run),
                consumer_name(Service.AGENT_RUNNER, env),
                partial(self._on_delivery, env),
                credit=0,
            )
            if (queue := self._queues.get(env)) is not None:
                self._keep(self._patrols, queue.patrol())
        self._share_credit()
        self._episodes.serving = ServedRun(self.run, self._config, dict(self._queues))

    async def leave(self) -> None:
        """Pull nothing more, end all agents, and publish the end of each episode."""
        self._is_leaving = True
        self._episodes.serving = None
        for subscription in self._subscriptions.values():
            subscription.set_credit(0)
        for patrol in self._patrols:
            patrol.cancel()
        for queue in self._queues.values():
            queue.close()
        self._running.stop()
        await asyncio.gather(*(s.leave() for s in self._subscriptions.values()), *self._departures)
        await asyncio.gather(*(judge.close() for judge in self._judges.values()))

    @property
    def num_running(self) -> int:
        """Episodes that run here now."""
        return len(self._running)

    def _set_versions(self, versions: tuple[int, ...]) -> None:
        self._context.presence.update(run=self.run if versions else None, versions=versions)

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _can_serve(self, env: str) -> bool:
        return self._around.local is not None or self._is_external(env)

    def _is_external(self, env: str) -> bool:
        agent = self._config.agent(env)
        return agent is not None and agent.external

    async def _warm(self, env: str) -> None:
        """Import the modules that the first episode would wait for; failures are reported by that episode."""
        agent, local = self._config.agent(env), self._around.local
        if agent is None:
            return
        if agent.external or local is None:
            if agent.reward != REPORTED:
                await self._judges[env].warm()
            return
        with suppress(NotStarted):
            await asyncio.gather(local.forkservers.forkserver(kind_of(agent)), self._judges[env].warm())
            if agent.command is None:
                await local.forkservers.forkserver(BARE)

    def _share_credit(self) -> None:
        if self._is_leaving:
            return
        local = {env: self._held[env] for env in self._subscriptions if env not in self._queues}
        elsewhere = sum(num for env, num in self._held.items() if not self._is_external(env)) - sum(local.values())
        credits = shared_credits(local, self._config.fleet.agents - elsewhere)
        for env, credit in (credits | self._external_credits()).items():
            if env in self._subscriptions:
                self._subscriptions[env].set_credit(credit)
        gateway = self._context.presence.status.facts.get("gateway", "")
        where = f"; agents elsewhere come to {str(gateway).removesuffix('/v1')}/episodes" if self._queues else ""
        self._context.presence.update(state=f"{len(self._running)} agents of run {self.run}{where}{self._unserved}")

    def _external_credits(self) -> dict[str, int]:
        return external_credits(
            {env: self._held[env] for env in self._queues},
            {env: queue.num_unclaimed for env, queue in self._queues.items()},
            {env: queue.num_missing for env, queue in self._queues.items()},
            self._config.fleet.agents,
        )

    async def _on_delivery(self, env: str, delivery: Delivery) -> None:
        queue = self._queues.get(env)
        self._held[env] += 1
        if queue is not None:
            queue.entered(delivery)
        self._share_credit()
        pings = asyncio.create_task(keep_alive(delivery))
        try:
            await self._end_delivery(delivery, queue)
        finally:
            pings.cancel()
            self._held[env] -= 1
            if queue is not None:
                queue.settled(delivery)
            self._share_credit()

    async def _end_delivery(self, delivery: Delivery, queue: EpisodeQueue | None) -> None:
        try:
            opened = await self._context.handlers.open(delivery)
            if not isinstance(opened, EpisodeOpened):
                raise BadInput(f"{delivery.subject}: expected EpisodeOpened, got {type(opened).__name__}")
            if await self._running.is_done(opened, delivery, queue):
                await delivery.ack()
            elif queue is None or queue.is_wanted:
                await delivery.nak(
                    RETRY_SECONDS
                )  # a client waits here but cannot use it: another gateway has that long to take it
            else:
                await delivery.nak()
        except InDoubt:
            await delivery.nak(local_episode.DOUBT_SECONDS)
            if queue is not None:
                queue.found_lost()
        except BadInput as wrong:
            await self._context.handlers.dead_letter(delivery, str(wrong))
        except Unavailable as wrong:
            log.warning("episode.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)
