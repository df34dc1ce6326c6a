"""deploy/nats.conf and its permissions, on a real server: each service can do its own things and no other's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest

from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.nats_server import find_binary, free_port
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import Lease, NodeOrder, Role, Service
from seamlessflow.contracts.export.nkeys import key_lines, main, seed_variable
from seamlessflow.contracts.export.permissions import SERVICES, permissions
from seamlessflow.contracts.routes import (
    BUCKETS,
    HINT_POKE,
    HINT_WEIGHTS,
    LEASES_BUCKET,
    NODES_BUCKET,
    ORDERS_BUCKET,
    READERS_BUCKET,
    ROUTES,
    WEIGHTS_BUCKET,
)
from seamlessflow.contracts.streams import (
    consumer_name,
    control_streams,
    generation_consumer,
    queue_stream,
    run_consumers,
    run_streams,
)
from seamlessflow.contracts.subjects import inbox_prefix, subject_of
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.reader_leases import Reader, Readings, read_readings
from tests.contracts.examples import EXAMPLES, R

ROOT = Path(__file__).parents[2]
WORK_TAGS = ("h800+rollout", "rollout")


@dataclass(frozen=True)
class Guarded:
    """A running server with the deployment's own configuration."""

    url: str
    seeds: dict[Service, str]

    async def bus(self, service: Service) -> JetStreamBus:
        return await connect(
            self.url,
            name=service.value,
            inbox_prefix=inbox_prefix(service),
            nkey_seed=self.seeds[service],
            patience_seconds=1.0,
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Guarded]:
    """nats-server with deploy/nats.conf as it is; only ports and store folder are the test's."""
    folder = tmp_path_factory.mktemp("nats")
    keys = dict(line.split("=", 1) for line in key_lines())
    port, monitor = free_port(), free_port()
    arguments = ["--addr", "127.0.0.1", "-p", str(port), "-m", str(monitor), "-sd", str(folder), "-l", str(folder / "log")]
    command = [find_binary(), "-c", str(ROOT / "deploy/nats.conf"), *arguments]
    server = subprocess.Popen(command, env={**os.environ, **keys})
    deadline = time.monotonic() + 20
    while "Server is ready" not in (log_of(folder)):
        assert server.poll() is None and time.monotonic() < deadline, log_of(folder)
        time.sleep(0.02)
    guarded = Guarded(f"nats://127.0.0.1:{port}", {service: keys[seed_variable(service)] for service in Service})
    asyncio.run(prepare(guarded))
    yield guarded
    server.kill()
    server.wait()


def log_of(folder: Path) -> str:
    return (folder / "log").read_text() if (folder / "log").exists() else ""


async def prepare(guarded: Guarded) -> None:
    """What a scheduler makes of a run: it is permitted to."""
    bus = await guarded.bus(Service.SCHEDULER)
    for bucket in BUCKETS:
        await bus.kv(bucket)
    for stream in (*control_streams(), *run_streams(R)):
        await bus.ensure_stream(stream)
    for consumer in run_consumers(R, envs=["solver"], shards=2, tags=WORK_TAGS, buckets=2):
        await bus.ensure_consumer(consumer)
    await (await bus.kv(LEASES_BUCKET)).put("local", pack_record(Lease(run=R, role=Role.ROLLOUT, epoch=1)))
    await bus.close()


OWN_PART = {
    Service.AGENT_RUNNER: "solver",
    Service.ROLLOUT_WORKER: "rollout.1",
    Service.TRAJECTORY_MANAGER: "1",
    Service.SCHEDULER: "",
    Service.TRAINER: "",
}


@pytest.mark.parametrize("service", list(Service), ids=lambda service: service.value)
async def test_a_service_may_say_everything_that_it_says(guarded, service, tmp_path):
    """Every event of the table is accepted from each service that says it, and can be read back."""
    bus = await guarded.bus(service)
    journal = Journal(bus, Store(f"file://{tmp_path}"))
    for event in EXAMPLES:
        route = next(route for route in ROUTES if route.event is type(event))
        if service in route.published_by:
            own = event.model_copy(update={"service": service.value} if "{service}" in route.subject else {})
            async with asyncio.timeout(5):
                await journal.publish(own)  # None where another service's test said it first: refused, but permitted
                assert await bus.last(route.stream.format(run=own.run), subject_of(own)) is not None
    await bus.close()


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.value)
async def test_a_service_takes_from_its_own_queue_and_acknowledges(guarded, service, tmp_path):
    """Pull, acknowledge, and the message is gone from the queue."""
    scheduler = await guarded.bus(Service.SCHEDULER)
    bus = await guarded.bus(service)
    stream, consumer = queue_stream(service, R), consumer_name(service, OWN_PART[service])
    await say_to(guarded, service, tmp_path)
    arrived = asyncio.Event()

    async def on_delivery(delivery) -> None:
        await delivery.in_progress()
        await delivery.ack()
        arrived.set()

    priority = 0 if service is Service.ROLLOUT_WORKER else None
    await bus.consume(stream, consumer, on_delivery, credit=4, priority=priority)
    async with asyncio.timeout(10):
        await arrived.wait()
        while await scheduler.pending(stream, consumer):
            await asyncio.sleep(0.02)
    await bus.close()
    await scheduler.close()


async def test_a_worker_takes_work_of_a_tag_that_people_made_up(guarded, tmp_path):
    """The permissions were made before anybody thought of it."""
    scheduler, bus = await guarded.bus(Service.SCHEDULER), await guarded.bus(Service.ROLLOUT_WORKER)
    manager = await guarded.bus(Service.TRAJECTORY_MANAGER)
    asked = next(event for event in EXAMPLES if type(event).__name__ == "GenerationRequested")
    asked = asked.model_copy(update={"episode": "tagged-0-0", "tag": WORK_TAGS[0], "bucket": 1})
    stream, consumer = queue_stream(Service.ROLLOUT_WORKER, R), generation_consumer(WORK_TAGS, WORK_TAGS[0], 1)
    await Journal(manager, Store(f"file://{tmp_path}")).publish(asked)
    arrived = asyncio.Event()

    async def on_delivery(delivery) -> None:
        assert f".gen.{WORK_TAGS[0]}.1." in delivery.subject
        await delivery.ack()
        arrived.set()

    await bus.consume(stream, consumer, on_delivery, credit=4, priority=0)
    async with asyncio.timeout(10):
        await arrived.wait()
        while await scheduler.pending(stream, consumer):
            await asyncio.sleep(0.02)
    for each in (bus, manager, scheduler):
        await each.close()


async def test_people_order_by_hand_what_nobody_else_may(guarded, monkeypatch):
    """The command's tag and drain work with the key of the user."""
    monkeypatch.setenv("SEAMLESSFLOW_NKEY_SEED", guarded.seeds[Service.USER])
    async with asyncio.timeout(10), Client.open(guarded.url) as client:
        await client.order("local", lambda order: order.model_copy(update={"drain": True}))
        assert (await client.orders())["local"].drain
        await client.order("local", lambda order: NodeOrder())


@pytest.mark.parametrize("service", [Service.ROLLOUT_WORKER, Service.USER], ids=lambda service: service.value)
async def test_who_reads_weights_may_lease_them_and_the_trainer_sees_it(guarded, service):
    """A lease, a word about what could not be had, and both are let go of again."""
    bus, trainer = await guarded.bus(service), await guarded.bus(Service.TRAINER)
    reader = Reader(bus, R, "reader")
    async with asyncio.timeout(10):
        async with reader.lease_one(3, "p") as is_leased:
            await reader.missed(4, "q", "damaged")
            found = await read_readings(trainer, R)
        assert is_leased and [each.weights_version for each in (*found.reads, *found.missed)] == [3, 4]
        await reader.got()
        assert await read_readings(trainer, R) == Readings((), ())
    await bus.close()
    await trainer.close()


async def say_to(guarded: Guarded, service: Service, tmp_path: Path) -> None:
    """One new event for a service's own part, from somebody who may say it."""
    kinds = {
        Service.AGENT_RUNNER: "EpisodeOpened",
        Service.ROLLOUT_WORKER: "GenerationRequested",
        Service.TRAJECTORY_MANAGER: "CallRequested",
        Service.SCHEDULER: "TaskSubmitted",
        Service.TRAINER: "SamplesReady",
    }
    event = next(event for event in EXAMPLES if type(event).__name__ == kinds[service])
    changed = {"episode": "new-0-0", "task": "new", "bucket": 1, "shard": 1}
    event = event.model_copy(update={name: value for name, value in changed.items() if name in type(event).model_fields})
    sayer = next(route for route in ROUTES if route.event is type(event)).published_by[0]
    bus = await guarded.bus(sayer)
    await Journal(bus, Store(f"file://{tmp_path}")).publish(event)
    await bus.close()


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.value)
async def test_a_service_keeps_its_presence_reads_its_lease_and_hears_pokes(guarded, service):
    """What the runtime does for every service."""
    bus = await guarded.bus(service)
    poked = asyncio.Event()

    async def on_poke(payload: bytes) -> None:
        poked.set()

    async with asyncio.timeout(10):
        nodes = await bus.kv(NODES_BUCKET)
        await nodes.put(f"local.{service.value}", b"x", ttl_seconds=5)
        assert await (await bus.kv(LEASES_BUCKET)).get("local") is not None
        stop = await bus.on_hint(HINT_POKE.format(node="local"), on_poke)
        scheduler = await guarded.bus(Service.SCHEDULER)
        while not poked.is_set():  # a hint may be lost, above all before the subscription is there
            await scheduler.hint(HINT_POKE.format(node="local"), b"")
            await asyncio.sleep(0.02)
        await stop()
        await nodes.delete(f"local.{service.value}")
    await scheduler.close()
    await bus.close()


async def test_the_manager_reaches_the_inbox_of_a_gateway(guarded):
    """The hint of an answer goes straight into the gateway's inbox."""
    runner, manager = await guarded.bus(Service.AGENT_RUNNER), await guarded.bus(Service.TRAJECTORY_MANAGER)
    heard: list[bytes] = []

    async def on_answer(payload: bytes) -> None:
        heard.append(payload)

    reply = runner.inbox()
    await runner.on_hint(reply, on_answer)
    async with asyncio.timeout(10):
        while not heard:
            await manager.hint(reply, b"answer")
            await asyncio.sleep(0.02)
    await runner.close()
    await manager.close()


S = Service
NOT_ALLOWED = [
    (S.ROLLOUT_WORKER, f"sf.{R}.ev.answer.e.c", "answers are the manager's"),
    (S.ROLLOUT_WORKER, f"sf.{R}.ev.group.g.closed", "groups are the trainer's"),
    (S.ROLLOUT_WORKER, f"sf.{R}.dead.trainer.x", "dead letters carry the name of who wrote them"),
    (S.ROLLOUT_WORKER, f"$JS.API.CONSUMER.CREATE.{queue_stream(S.TRAINER, R)}.mine", "a consumer can deliver to anybody"),
    (S.ROLLOUT_WORKER, "$JS.API.STREAM.CREATE.MINE", "streams are the scheduler's"),
    (S.ROLLOUT_WORKER, f"$JS.API.STREAM.DELETE.{queue_stream(S.TRAINER, R)}", "streams are the scheduler's"),
    (S.ROLLOUT_WORKER, f"$JS.API.CONSUMER.MSG.NEXT.{queue_stream(S.TRAINER, R)}.trainer", "samples are the trainer's"),
    (S.ROLLOUT_WORKER, f"$JS.ACK.{queue_stream(S.TRAINER, R)}.trainer.1.1.1.1.1", "so are their acknowledgements"),
    (S.ROLLOUT_WORKER, f"$JS.ACK._.hash.{queue_stream(S.TRAINER, R)}.trainer.1.1.1.1.1.x", "in the other form, too"),
    (S.ROLLOUT_WORKER, f"$KV.{LEASES_BUCKET}.local", "leases are the scheduler's"),
    (S.ROLLOUT_WORKER, f"$KV.{WEIGHTS_BUCKET}.{R}", "the head is the trainer's"),
    (S.ROLLOUT_WORKER, f"{inbox_prefix(S.AGENT_RUNNER)}.x", "gateways believe the manager only"),
    (S.AGENT_RUNNER, f"$JS.API.CONSUMER.MSG.NEXT.{queue_stream(S.TRAJECTORY_MANAGER, R)}.shard-1", "calls are the manager's"),
    (S.AGENT_RUNNER, f"$JS.API.CONSUMER.MSG.NEXT.{queue_stream(S.ROLLOUT_WORKER, R)}.gen-rollout-1", "the worker's"),
    (S.AGENT_RUNNER, f"$JS.API.CONSUMER.MSG.NEXT.{queue_stream(S.ROLLOUT_WORKER, R)}.gen-t1-1", "of any tag"),
    (S.ROLLOUT_WORKER, f"$KV.{ORDERS_BUCKET}.local", "orders are people's"),
    (S.TRAJECTORY_MANAGER, f"sf.{R}.task.solver.t", "tasks are people's, and of agents elsewhere"),
    (S.TRAJECTORY_MANAGER, f"$JS.API.CONSUMER.MSG.NEXT.{queue_stream(S.AGENT_RUNNER, R)}.env-solver", "the runner's"),
    (S.TRAJECTORY_MANAGER, f"sf.{R}.ev.segment.0.e.c", "segments are the worker's"),
    (S.TRAINER, f"sf.{R}.episode.solver.e", "episodes are opened by the scheduler"),
    (S.TRAINER, f"$KV.{LEASES_BUCKET}.local", "leases are the scheduler's"),
    (S.TRAINER, f"$KV.{READERS_BUCKET}.{R}.reads.x", "who collects does not speak for who reads"),
    (S.AGENT_RUNNER, f"$KV.{READERS_BUCKET}.{R}.reads.x", "it reads no weights"),
    (S.SCHEDULER, f"sf.{R}.ev.weights.1.published", "the scheduler makes streams, and still says only what is its own"),
    (S.SCHEDULER, f"sf.{R}.sample.g.e", "samples are the manager's"),
    (S.USER, f"sf.{R}.ev.run.ended", "people ask for an end, the scheduler says it"),
    (S.USER, f"$JS.API.STREAM.DELETE.J_{R}", "a journal is not deleted by accident"),
]


@pytest.mark.parametrize(("service", "subject", "why"), NOT_ALLOWED)
async def test_a_service_cannot_do_what_is_anothers(guarded, service, subject, why):
    """The server refuses the publish; `why` finishes the sentence."""
    client, errors = await raw_client(guarded, service)
    await client.publish(subject, json.dumps({"batch": 1, "no_wait": True}).encode())
    await client.flush()
    async with asyncio.timeout(5):
        while not errors:
            await asyncio.sleep(0.01)

    assert "permissions violation for publish" in errors[0].lower(), why
    await client.close()


WEIGHTS_NEWS = HINT_WEIGHTS.format(run="*")
NOT_HEARD = [
    (service, subject)
    for service in SERVICES
    for subject in ("sf.>", "_INBOX.>", ">", "$JS.API.>", WEIGHTS_NEWS)
    if (service, subject) != (Service.ROLLOUT_WORKER, WEIGHTS_NEWS)
]


@pytest.mark.parametrize(("service", "subject"), NOT_HEARD)
async def test_a_service_cannot_listen_to_others(guarded, service, subject):
    """Not to events as they fly by, not to answers for others."""
    client, errors = await raw_client(guarded, service)
    await client.subscribe(subject)
    await client.flush()
    async with asyncio.timeout(5):
        while not errors:
            await asyncio.sleep(0.01)

    assert "permissions violation for subscription" in errors[0].lower()
    await client.close()


async def test_nobody_comes_in_without_a_key(guarded):
    """The server has no user without a key."""
    with pytest.raises(nats.errors.Error, match="uthorization"):
        await nats.connect(guarded.url, allow_reconnect=False, connect_timeout=2)


async def raw_client(guarded: Guarded, service: Service) -> tuple[nats.NATS, list[str]]:
    """A client that does not repeat, and what the server complained of."""
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    client = await nats.connect(
        guarded.url, nkeys_seed_str=guarded.seeds[service], inbox_prefix=inbox_prefix(service).encode(), error_cb=on_error
    )
    return client, errors


async def test_a_person_can_ask_for_a_run_and_look(guarded, monkeypatch):
    """The client of seamlessflow's command works with the key of the user."""
    monkeypatch.setenv("SEAMLESSFLOW_NKEY_SEED", guarded.seeds[Service.USER])
    config = parse_run_config(
        {"model": {"name": "m"}, "agents": [{"env": "solver", "command": ["true"]}], "algorithm": {"steps": 1}}
    )
    async with asyncio.timeout(10), Client.open(guarded.url) as client:
        assert await client.request_run("asked", config)
        assert await client.request_run("asked", config), "the same request again is the same request"
        assert not await client.request_run("asked", config.model_copy(update={"seed": 1})), "the name is taken"
        assert R in await client.runs()
        await client.nodes()


def test_only_the_scheduler_may_make_streams_or_consumers():
    """Read from the lists themselves: nobody else has a subject that covers these, but for the control stream."""
    for service, allowed in permissions().items():
        allowed.publish[:] = [subject for subject in allowed.publish if subject != "$JS.API.STREAM.CREATE.CTL"]
        making = [s for s in allowed.publish if "CREATE" in s or "DELETE" in s or "PURGE" in s or s in ("$JS.API.>", ">")]
        assert bool(making) == (service is Service.SCHEDULER), f"{service}: {making}"


def test_keys_are_made_once(tmp_path, capsys):
    """A second call changes nothing: a running deployment would lock itself out."""
    path = tmp_path / ".env"
    main(path)
    first = path.read_text()
    main(path)

    assert path.read_text() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert "nothing was changed" in capsys.readouterr().out
    assert len(first.splitlines()) == 2 * len(Service)
