"""What each service may publish and hear, derived from the wiring table, as nats-server wants it.

A service may publish its own events, read any journal by direct get, pull from and acknowledge to its own consumers, keep
its own keys, and hear its own inbox. Only the scheduler may make streams or consumers: a process that can create a consumer
can have any message delivered to any subject.

NATS matches whole tokens, so consumers are told apart by their names. Names with a part (a shard, a tag and bucket) are
listed for ``SHARDS``, ``BUCKETS_PER_TAG`` and the places that a run's work tags can have: tags are people's own words, so
they are numbered in each run (``tags.places``). Environment tags stand in names as they are, so the agent-runner may pull from
any consumer but the ones that are listed for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seamlessflow.contracts.base import Service
from seamlessflow.contracts.routes import (
    BUCKETS,
    CONTROL_CONSUMER,
    CONTROL_STREAM,
    HINT_POKE,
    HINT_WEIGHTS,
    NODES_BUCKET,
    ORDERS_BUCKET,
    READERS_BUCKET,
    ROUTES,
    WEIGHTS_BUCKET,
)
from seamlessflow.contracts.streams import all_buckets, consumer_name
from seamlessflow.contracts.subjects import inbox_prefix, wildcards
from seamlessflow.contracts.tags import ALL_PLACES

SHARDS, BUCKETS_PER_TAG = 16, 64
"""Parts a deployment with permissions may use; raise them here and run ``./task schemas``."""

SERVICES = tuple(service for service in Service if service is not Service.USER)
PARTS: Mapping[Service, Sequence[str] | None] = {
    Service.AGENT_RUNNER: None,
    Service.ROLLOUT_WORKER: [f"{place}.{bucket}" for place in ALL_PLACES for bucket in all_buckets(BUCKETS_PER_TAG)],
    Service.TRAJECTORY_MANAGER: [str(shard) for shard in range(SHARDS)],
    Service.SCHEDULER: ("",),
    Service.TRAINER: ("",),
}
HINTS: Mapping[Service, tuple[str, ...]] = {
    Service.SCHEDULER: (wildcards(HINT_POKE),),
    Service.TRAINER: (wildcards(HINT_WEIGHTS),),
    Service.TRAJECTORY_MANAGER: (f"{inbox_prefix(Service.AGENT_RUNNER)}.>",),
}
"""What each may publish without storing it: pokes, and answers into the gateway's inbox."""
WRITABLE: Mapping[Service, tuple[str, ...]] = {
    Service.SCHEDULER: BUCKETS,
    Service.TRAINER: (NODES_BUCKET, WEIGHTS_BUCKET),
    Service.ROLLOUT_WORKER: (NODES_BUCKET, READERS_BUCKET),
    Service.USER: (ORDERS_BUCKET, READERS_BUCKET),
}


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects of one user; what is denied is denied although it is allowed."""

    publish: list[str] = field(default_factory=list)
    subscribe: list[str] = field(default_factory=list)
    deny_publish: list[str] = field(default_factory=list)


def permissions() -> dict[Service, Permissions]:
    """Allow-lists of the five services and of people."""
    return {service: _of(service) for service in Service}


def _of(service: Service) -> Permissions:
    publish = [wildcards(r.subject, service=service.value) for r in ROUTES if service in r.published_by]
    publish += HINTS.get(service, ())
    publish += [f"$KV.{bucket}.>" for bucket in WRITABLE.get(service, (NODES_BUCKET,))]
    subscribe = [f"{inbox_prefix(service)}.>"]
    if service is Service.SCHEDULER:
        return Permissions(_distinct([*publish, "$JS.API.>", "$JS.ACK.>"]), [*subscribe, wildcards(HINT_POKE)])
    publish += ["$JS.API.DIRECT.GET.*", "$JS.API.STREAM.NAMES"]
    if service is Service.USER:
        # `nats` and other clients listen on _INBOX; people look at streams and consumers, and may be there before any
        # scheduler has made the control stream.
        looking = ["$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.INFO.*.*"]
        looking += [f"$JS.API.STREAM.CREATE.{CONTROL_STREAM}"]
        return Permissions(_distinct([*publish, *looking]), [*subscribe, "_INBOX.>"])
    subscribe.append(wildcards(HINT_POKE))
    if service is Service.ROLLOUT_WORKER:
        subscribe.append(wildcards(HINT_WEIGHTS))
    own = _consumers(service)
    others = [] if own else [name for other in SERVICES for name in _consumers(other)]
    return Permissions(_distinct([*publish, *_taking(own or ["*"])]), subscribe, _taking(others))


def _consumers(service: Service) -> list[str]:
    """Names of a service's consumers; empty when they are not known beforehand."""
    names = [consumer_name(service, part) for part in PARTS[service] or ()]
    return _distinct([*names, CONTROL_CONSUMER]) if service is Service.SCHEDULER else names


def _taking(consumers: Sequence[str]) -> list[str]:
    """Pulling, and acknowledging in both forms of the reply subject (with and without domain and account)."""
    pulls = [f"$JS.API.CONSUMER.MSG.NEXT.*.{name}" for name in consumers]
    return pulls + [f"$JS.ACK.{lead}*.{name}.>" for name in consumers for lead in ("", "*.*.")]


def _distinct(subjects: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(subjects))


def key_variable(service: Service) -> str:
    """Environment variable with the public key of a service's user."""
    return f"SEAMLESSFLOW_NKEY_{service.name}"


def permissions_conf() -> str:
    """The file ``deploy/permissions.conf``, included by ``deploy/nats.conf``."""
    users = "\n".join(_user(service, allowed) for service, allowed in permissions().items())
    return (
        "# Generated from seamlessflow.contracts by `./task schemas`; do not edit.\n"
        "# Each service is an nkey user. `./task keys` makes the keys: public ones for the server's environment,\n"
        "# seeds (SEAMLESSFLOW_NKEY_SEED) for the services.\n"
        f"authorization {{\n  users = [\n{users}\n  ]\n}}\n"
    )


def _user(service: Service, allowed: Permissions) -> str:
    deny = f"\n          deny: {_listed(allowed.deny_publish)}" if allowed.deny_publish else ""
    return (
        f"    # {service.value}\n"
        f"    {{\n      nkey: ${key_variable(service)}\n      permissions: {{\n"
        f"        publish: {{\n          allow: {_listed(allowed.publish)}{deny}\n        }}\n"
        f"        subscribe: {{\n          allow: {_listed(allowed.subscribe)}\n        }}\n      }}\n    }}"
    )


def _listed(subjects: Sequence[str]) -> str:
    return "[\n" + "".join(f'            "{subject}"\n' for subject in subjects) + "          ]"
