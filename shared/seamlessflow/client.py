"""For people and programs that use SeamlessFlow: request a run, publish tasks, follow what happens.

async with Client.open("nats://127.0.0.1:4222", "s3://bucket/runs") as client:
    await client.submit(TaskSubmitted(run="demo", task="t1", env="single", prompt="What is 2 + 2?"))
    async for record, event in client.events("demo", follow=True):
        ...
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Self

import nats.errors

from .bus.base import Bus, Record, StreamSpec
from .bus.jetstream import connect
from .checkpoints.commit_claim import read_commits
from .checkpoints.commit_history import CommitHistory
from .codec import unpack_record
from .config.run import RunConfig, parse_run_config
from .config.settings import Settings
from .config.tag_rules import Rule, parse_rule
from .contracts import (
    Event,
    NodeOrder,
    NodeStatus,
    ResumeRequested,
    RoleAssigned,
    RunPhase,
    RunRequested,
    RunStarted,
    RunState,
    RunStopRequested,
    Service,
    TasksEnded,
    TaskSubmitted,
)
from .contracts.fleet import Lease
from .contracts.routes import CONTROL_STREAM, LEASES_BUCKET, NODES_BUCKET, ORDERS_BUCKET, RUNS_BUCKET
from .contracts.streams import control_streams, journal_stream
from .contracts.subjects import inbox_prefix, kinds_on, subject_filter, subject_of
from .errors import ConfigError, MalformedMessage, Unavailable
from .redaction import without_password
from .runtime.journal import Journal
from .runtime.node_records import Unreadable, change_order, read_records
from .store.large_payloads import BLOB_HEADER, Store

CONNECT_SECONDS = 5.0
TagRules = tuple[tuple[str, Rule], ...]
"""Tags, each with the hardware that has it."""


class NoStore(Store):
    """Stands in for a store without a URL: its first use raises an error that names the setting."""

    def __init__(self) -> None:
        super().__init__("memory://")

    def read(self, path: str) -> bytes:
        """Raises ConfigError that names the option."""
        raise ConfigError(f"{path} is in the run's store: give --store URL, the one the services use")

    def write(self, path: str, content: bytes) -> None:
        """Raises ConfigError that names the option."""
        raise ConfigError(
            f"{len(content)} bytes for {path} go into the run's store: give --store URL, the one the services use"
        )


class Client:
    """A connection for people; it can publish requests and tasks and read everything."""

    def __init__(self, bus: Bus, store: Store) -> None:
        self.bus, self.store = bus, store
        self._journal = Journal(bus, store)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, nats_url: str, store_url: str | None = None, *, patience_seconds: float = CONNECT_SECONDS
    ) -> AsyncIterator[Self]:
        """Connect and, at the end, close. Without ``store_url`` an event above 64 KiB is an error.

        Raises Unavailable when nothing answers within ``patience_seconds``; once connected, it reconnects for ever.
        Where the server asks for keys, SEAMLESSFLOW_NKEY_SEED is ours.
        """
        store = NoStore() if store_url is None else Store(store_url)
        prefix, seed = inbox_prefix(Service.USER), Settings().nkey_seed
        try:
            async with asyncio.timeout(patience_seconds):
                bus = await connect(nats_url, name="client", inbox_prefix=prefix, nkey_seed=seed)
        except (TimeoutError, OSError, ValueError, nats.errors.Error) as wrong:
            detail = f" ({wrong})" if str(wrong) else ""
            raise Unavailable(
                f"{without_password(nats_url)} did not answer within {patience_seconds:g} s{detail}. "
                "Is a nats-server there, and are user and password those of its URL?"
            ) from wrong
        try:
            yield cls(bus, store)
        finally:
            await bus.close()

    async def request_run(self, run: str, config: RunConfig) -> bool:
        """Ask for a run; False when another one of this name was asked for before."""
        await self.bus.ensure_stream(_control())
        request = RunRequested(run=run, document=config.document)
        stored = await self._journal.publish(request)
        if stored is not None and not stored.duplicate:
            return True
        # Perhaps our own, whose acknowledgement was lost.
        first = await self.bus.first(CONTROL_STREAM, subject_of(request))
        return first is not None and await self._journal.open(first) == request

    async def stop_run(self, run: str, reason: str = "requested") -> None:
        """Ask for an orderly end."""
        await self._journal.publish(RunStopRequested(run=run, reason=reason))

    async def resume(self, run: str, checkpoint_step: int | None = None) -> None:
        """Ask for a run to go on: with the kept checkpoint of a step, or (None) as it stands, when it is held."""
        await self._journal.publish(ResumeRequested(run=run, request=uuid.uuid4().hex, checkpoint_step=checkpoint_step))

    async def submit(self, task: TaskSubmitted) -> bool:
        """Publish a task; False when the journal saw this task id in the last ten minutes."""
        stored = await self._journal.publish(task)
        return stored is not None and not stored.duplicate

    async def end_tasks(self, run: str) -> None:
        """Close the run's task queue: no more tasks will come."""
        await self._journal.publish(TasksEnded(run=run))

    async def runs(self) -> list[str]:
        """Names of the runs whose journals exist."""
        return sorted(name[2:] for name in await self.bus.stream_names() if name.startswith(journal_stream("")))

    async def requested(self, run: str) -> RunConfig | None:
        """The run's document, from its start or else from its request; None when the run was never requested."""
        started = await self._journal.first(RunStarted, run) if run in await self.runs() else None
        if started is not None:
            return parse_run_config(started.document, source=f"run {run}")
        await self.bus.ensure_stream(_control())
        first = await self.bus.first(CONTROL_STREAM, subject_filter(RunRequested, run=run))
        request = None if first is None else await self._journal.open(first)
        return parse_run_config(request.document, source=f"run {run}") if isinstance(request, RunRequested) else None

    async def events(
        self,
        run: str,
        *,
        follow: bool = False,
        start_seq: int = 1,
        without: Collection[type[Event]] = (),
    ) -> AsyncIterator[tuple[Record, Event]]:
        """A run's journal in order, each event with its record (sequence, time, subject); malformed messages are left out.

        without: kinds of no use to the caller. What its subject tells to be one of them is not even decoded.
        Raises ConfigError at an event that is kept in the run's store and not in ours: leaving it out would bend every sum.
        """
        async for record in self.bus.read(journal_stream(run), start_seq=start_seq, follow=follow):
            if without and kinds_on(record.subject) <= set(without):
                continue
            try:
                yield record, await self._journal.open(record)
            except MalformedMessage as wrong:
                if BLOB_HEADER in record.headers:
                    raise ConfigError(
                        f"event {record.seq} of run {run}: {wrong}; give --store URL, the one the services use"
                    ) from wrong
                continue  # its reader has dead-lettered it; the dead letter is an event of its own

    async def commits(self, run: str) -> CommitHistory:
        """What a run's journal holds of claims, commits and rollbacks.

        Raises ConfigError where one is kept in a store that is not ours: without it an older checkpoint would seem the newest.
        """
        try:
            return await read_commits(self.bus, self._journal, run)
        except MalformedMessage as wrong:
            raise ConfigError(
                f"a commit of run {run} cannot be read: {wrong}; give --store URL, the one the services use"
            ) from wrong

    async def run_state(self, run: str) -> RunState | None:
        """Where the scheduler has got with a run; None while it has not seen the request."""
        entry = await (await self.bus.kv(RUNS_BUCKET)).get(run)
        return None if entry is None else unpack_record(RunState, entry.value)

    async def nodes(self) -> list[tuple[NodeStatus, Lease | None]]:
        """Who is there now, and what each node may do."""
        leases = await self.leases()
        return [(status, leases.get(status.node)) for status in await self.statuses()]

    async def statuses(self, unreadable: Unreadable | None = None) -> list[NodeStatus]:
        """Who is there now, by node and service."""
        present = (await read_records(self.bus, NODES_BUCKET, NodeStatus, unreadable)).values()
        return sorted(present, key=lambda status: (status.node, status.service))

    async def leases(self, unreadable: Unreadable | None = None) -> dict[str, Lease]:
        """What each node may do, by name, of nodes that are not there, too."""
        return await read_records(self.bus, LEASES_BUCKET, Lease, unreadable)

    async def orders(self, unreadable: Unreadable | None = None) -> dict[str, NodeOrder]:
        """What people ordered of nodes by hand, of nodes that are not there, too."""
        return await read_records(self.bus, ORDERS_BUCKET, NodeOrder, unreadable)

    async def tag_rules(self) -> dict[str, TagRules]:
        """Rules by which nodes have tags for runs that go on, by run."""
        found: dict[str, TagRules] = {}
        for entry in await (await self.bus.kv(RUNS_BUCKET)).entries():
            with suppress(MalformedMessage, ConfigError):  # what cannot be read gives no tags
                if unpack_record(RunState, entry.value).phase in (RunPhase.QUEUED, RunPhase.RUNNING):
                    config = await self.requested(entry.key)
                    if config is not None and config.fleet.tag_rules:
                        found[entry.key] = tuple((rule.tag, parse_rule(rule.when)) for rule in config.fleet.tag_rules)
        return found

    async def order(self, node: str, change: Callable[[NodeOrder], NodeOrder]) -> NodeOrder:
        """Change what is ordered of a node; returns what stands then. Two people at once both get their way.

        What stands there and cannot be read is overwritten.
        """
        return await change_order(self.bus, node, change)

    async def assignments(self, node: str) -> list[tuple[Record, RoleAssigned]]:
        """Roles that a node was given in the runs whose journals exist, in order of time."""
        found = []
        for run in await self.runs():
            async for record in self.bus.read(journal_stream(run), filters=(subject_filter(RoleAssigned, run=run, node=node),)):
                event = await self._journal.open(record)
                if isinstance(event, RoleAssigned):
                    found.append((record, event))
        return sorted(found, key=lambda pair: pair[0].time)


def _control() -> StreamSpec:
    return next(spec for spec in control_streams() if spec.name == CONTROL_STREAM)
