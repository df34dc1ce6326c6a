"""One run that this runner is part of: its queues, how much is pulled from each, and leaving it."""

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
from .episodes.local_episode import InDoubt, Running
from .episodes.pinned_version import Pinning
from .episodes.rewards import Judge
from .external.episode_api import Serving
from .external.episode_queue import Outlet
from .processes.forkserver_client import NotStarted

# How the runner's free places are shared among the queues of its environment tags. Pure.


def shared_credits(running: Mapping[str, int], total: int) -> dict[str, int]:
    """Credit of each environment: what it runs now, plus its share of the free places.

    running: episodes being run, by environment tag. total: places of this runner.
    The credits sum to at most ``total`` (unless more runs already), so that what is pulled always has a place. The free
    places are dealt one by one to whoever runs least: an idle queue keeps a foot in the door, a busy one gets the rest.
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
    """Credit of each environment of external agents: what it holds, and what somebody waits for, as long as there are places.

    held: deliveries in hand. unclaimed: those of them that are no running episode. missing: how many more are waited for.
    total: places of this runner for external agents.
    """
    free = total - sum(held[env] - unclaimed[env] for env in held)
    credits = {}
    for env in held:
        more = max(0, min(missing[env], free))
        free -= more
        credits[env] = held[env] + more
    return credits


log = structlog.get_logger()

RETRY_SECONDS = 1.0
_GATEWAY_ONLY = "this is a gateway, and their agents need a runner that starts them"


class Membership:
    """Pulls the episodes of a run's environment tags, as many at a time as the run allows.

    Those of external agents: as many as somebody asks for.
    """

    def __init__(self, context: Context, settings: RunnerSettings, around: Surroundings, run: str, config: RunConfig) -> None:
        self.run, self._config, self._context, self._around = run, config, context, around
        self._subscriptions: dict[str, Subscription] = {}
        self._outlets: dict[str, Outlet] = {}
        """Of the environments of external agents."""
        self._held: Counter[str] = Counter()
        """Deliveries in our hands, by environment tag."""
        self._partings: set[asyncio.Task[None]] = set()
        self._patrols: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._unserved = ""
        """For people."""
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
        pinning = Pinning(context.journal, run, slots, self._say_versions) if slots else None
        self._running = Running(around, config, self._judges, pinning)

    async def hold(self, envs: Iterable[str]) -> None:
        """Pull for exactly these environment tags from now on; agents of the others run to their end."""
        wanted = {env for env in envs if self._can_serve(env)}
        if unserved := sorted(set(envs) - wanted):
            log.warning("run.partly_served", run=self.run, unserved=unserved, reason=_GATEWAY_ONLY)
        self._unserved = f"; not served: {', '.join(unserved)} ({_GATEWAY_ONLY})" if unserved else ""
        for env in set(self._subscriptions) - wanted:
            if (outlet := self._outlets.pop(env, None)) is not None:
                outlet.close()
            self._keep(self._partings, self._subscriptions.pop(env).leave())
        new = wanted - set(self._subscriptions)
        await asyncio.gather(*(self._warm(env) for env in new))
        for env in new:
            agent = self._config.agent(env)
            if agent is not None and agent.external:
                self._outlets[env] = Outlet(self._share_credit)
            self._subscriptions[env] = await self._context.bus.consume(
                queue_stream(Service.AGENT_RUNNER, self.run),
                consumer_name(Service.AGENT_RUNNER, env),
                partial(self._on_delivery, env),
                credit=0,
            )
            if (outlet := self._outlets.get(env)) is not None:
                self._keep(self._patrols, outlet.patrol())
        self._share_credit()
        self._around.desk.serving = Serving(self.run, self._config, dict(self._outlets))

    async def leave(self) -> None:
        """Pull nothing more, end all agents, and say so of each."""
        self._is_leaving = True
        self._around.desk.serving = None
        for subscription in self._subscriptions.values():
            subscription.set_credit(0)
        for patrol in self._patrols:
            patrol.cancel()
        for outlet in self._outlets.values():
            outlet.close()
        self._running.stop()
        await asyncio.gather(*(s.leave() for s in self._subscriptions.values()), *self._partings)
        await asyncio.gather(*(judge.close() for judge in self._judges.values()))

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _say_versions(self, versions: tuple[int, ...]) -> None:
        self._context.presence.update(run=self.run if versions else None, versions=versions)

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _can_serve(self, env: str) -> bool:
        return self._around.hosting is not None or self._is_external(env)

    def _is_external(self, env: str) -> bool:
        agent = self._config.agent(env)
        return agent is not None and agent.external

    async def _warm(self, env: str) -> None:
        """Import what the first episode would otherwise wait for. What is wrong is said by that episode."""
        agent, hosting = self._config.agent(env), self._around.hosting
        if agent is None:
            return
        if agent.external or hosting is None:
            if agent.reward != REPORTED:
                await self._judges[env].warm()
            return
        with suppress(NotStarted):
            await asyncio.gather(hosting.nursery.zygote(kind_of(agent)), self._judges[env].warm())
            if agent.command is None:
                await hosting.nursery.zygote(BARE)

    def _share_credit(self) -> None:
        if self._is_leaving:
            return
        hosted = {env: self._held[env] for env in self._subscriptions if env not in self._outlets}
        elsewhere = sum(num for env, num in self._held.items() if not self._is_external(env)) - sum(hosted.values())
        credits = shared_credits(hosted, self._config.fleet.agents - elsewhere)
        for env, credit in (credits | self._external_credits()).items():
            if env in self._subscriptions:
                self._subscriptions[env].set_credit(credit)
        gateway = self._context.presence.status.facts.get("gateway", "")
        where = f"; agents elsewhere come to {str(gateway).removesuffix('/v1')}/episodes" if self._outlets else ""
        self._context.presence.update(state=f"{len(self._running)} agents of run {self.run}{where}{self._unserved}")

    def _external_credits(self) -> dict[str, int]:
        return external_credits(
            {env: self._held[env] for env in self._outlets},
            {env: outlet.num_unclaimed for env, outlet in self._outlets.items()},
            {env: outlet.num_missing for env, outlet in self._outlets.items()},
            self._config.fleet.agents,
        )

    async def _on_delivery(self, env: str, delivery: Delivery) -> None:
        outlet = self._outlets.get(env)
        self._held[env] += 1
        if outlet is not None:
            outlet.entered(delivery)
        self._share_credit()
        pings = asyncio.create_task(keep_alive(delivery))
        try:
            await self._end_delivery(delivery, outlet)
        finally:
            pings.cancel()
            self._held[env] -= 1
            if outlet is not None:
                outlet.settled(delivery)
            self._share_credit()

    async def _end_delivery(self, delivery: Delivery, outlet: Outlet | None) -> None:
        try:
            opened = await self._context.handlers.open(delivery)
            if not isinstance(opened, EpisodeOpened):
                raise BadInput(f"{delivery.subject}: expected EpisodeOpened, got {type(opened).__name__}")
            if await self._running.is_done(opened, delivery, outlet):
                await delivery.ack()
            elif outlet is None or outlet.is_wanted:
                await delivery.nak(RETRY_SECONDS)  # who waits here cannot use it: somebody else has that long to take it
            else:
                await delivery.nak()
        except InDoubt:
            await delivery.nak(local_episode.DOUBT_SECONDS)
            if outlet is not None:
                outlet.found_lost()
        except BadInput as wrong:
            await self._context.handlers.dead_letter(delivery, str(wrong))
        except Unavailable as wrong:
            log.warning("episode.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)
