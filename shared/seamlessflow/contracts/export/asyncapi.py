"""The AsyncAPI 3.0 document: a channel for each subject, an operation for each event a service publishes or acts on."""

from __future__ import annotations

from typing import Any

from seamlessflow.bus.base import MAX_PAYLOAD_BYTES
from seamlessflow.contracts.base import Service
from seamlessflow.contracts.routes import ROUTES, Route
from seamlessflow.contracts.streams import consumers_of
from seamlessflow.contracts.subjects import placeholders

from .json_schema import event_schema, event_tag, summary

REF = "#/components/schemas/{model}"


def channel_name(route: Route) -> str:
    """Literal tokens of the subject: ``ev-group-closed``."""
    return "-".join(token for token in route.subject.split(".")[1:] if not token.startswith("{"))


def asyncapi_document() -> dict[str, Any]:
    """The file ``schemas/asyncapi.json``."""
    schemas: dict[str, Any] = {}
    messages = {route.event.__name__: _message(route, schemas) for route in ROUTES}
    return {
        "asyncapi": "3.0.0",
        "id": "urn:seamlessflow",
        "info": {
            "title": "SeamlessFlow",
            "version": "1.0.0",
            "description": "Everything five services say to each other, generated from seamlessflow.contracts.routes. "
            "Payloads are msgpack maps, or JSON with `Content-Type: application/json`; every publish carries a "
            "`Nats-Msg-Id`, so that saying a fact again stores it once.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/msgpack",
        "servers": {
            "jetstream": {
                "host": "{address}",
                "protocol": "nats",
                "description": "A NATS server with JetStream.",
                "variables": {"address": {"default": "127.0.0.1:4222", "description": "SEAMLESSFLOW_NATS_URL"}},
            }
        },
        "channels": _channels(),
        "operations": _operations(),
        "components": {"messages": messages, "schemas": dict(sorted(schemas.items()))},
    }


def _message(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    payload = event_schema(route.event, ref_template=REF)
    schemas.update(payload.pop("$defs", {}))
    described = payload.pop("description")
    return {
        "name": event_tag(route.event),
        "title": route.event.__name__,
        "summary": summary(route.event),
        "description": described,
        "contentType": "application/msgpack",
        "headers": {
            "type": "object",
            "properties": {
                "Nats-Msg-Id": {"type": "string", "description": "De-duplication id: `{run}." + route.message_id + "`"},
                "Sf-Blob": {"type": "string", "description": "Where the payload rests when it is above 64 KiB."},
            },
        },
        "payload": payload,
        "x-stream": route.stream,
        "x-once": route.once,
        "x-claimed": route.claimed,
        "x-max-bytes": MAX_PAYLOAD_BYTES,
    }


def _channels() -> dict[str, Any]:
    channels: dict[str, Any] = {}
    for route in ROUTES:
        channel = channels.setdefault(
            channel_name(route),
            {"address": route.subject.replace("{origin.", "{"), "messages": {}, "parameters": _parameters(route)},
        )
        channel["messages"][route.event.__name__] = {"$ref": f"#/components/messages/{route.event.__name__}"}
    return channels


def _parameters(route: Route) -> dict[str, Any]:
    return {
        name.rpartition(".")[2]: {"location": "$message.payload#/" + name.replace(".", "/")}
        for name in placeholders(route.subject)
    }


def _operations() -> dict[str, Any]:
    published = [(service, "send", route) for route in ROUTES for service in route.published_by]
    heard = [(service, "receive", route) for route in ROUTES for service in consumers_of(route.event)]
    return {
        f"{service.value}.{action}.{route.event.__name__}": _operation(service, action, route)
        for service, action, route in sorted(published + heard, key=lambda each: (list(Service).index(each[0]), each[1]))
    }


def _operation(service: Service, action: str, route: Route) -> dict[str, Any]:
    channel = f"#/channels/{channel_name(route)}"
    return {
        "action": action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{route.event.__name__}"}],
        "summary": f"{service.value} {'says' if action == 'send' else 'acts on'} {route.event.__name__}.",
        "tags": [{"name": service.value}],
    }
