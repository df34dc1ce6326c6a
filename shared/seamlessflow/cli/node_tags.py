"""``seamlessflow tag``, ``untag`` and ``drain``: what is ordered of nodes by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

from seamlessflow.client import Client
from seamlessflow.contracts import NodeOrder, Service
from seamlessflow.contracts.tags import ROLES, component
from seamlessflow.errors import ConfigError

from .nodes import NodeArgument, NodeView, one_node, tag_words
from .options import NatsUrl
from .run_location import any_address
from .status import is_served

TagArguments = Annotated[list[str], typer.Argument(help="Tags, such as h800 or prefill; also rollout and train.")]


def tag(node: NodeArgument, tags: TagArguments, nats: NatsUrl = None) -> None:
    """Give a node tags, or give back what was taken away by hand. The fleet follows within two seconds."""
    asked = _checked(tags)

    def change(order: NodeOrder, view: NodeView) -> NodeOrder:
        if view.processes and all(process.service == Service.SCHEDULER for process in view.processes):
            raise ConfigError(f"{node} has only a scheduler, which takes no work: tags are for nodes with other services")
        return with_tags(order, asked, view.announced)

    _order(nats, node, change)


def untag(node: NodeArgument, tags: TagArguments, nats: NatsUrl = None) -> None:
    """Take tags away from a node, also announced ones: without rollout it samples nothing, without train it takes no steps."""
    asked = _checked(tags)
    before = _order(nats, node, lambda order, view: without_tags(order, asked, (*view.announced, *view.ruled)))
    for each in asked:
        if each not in before.tags and each not in (*before.announced, *before.order.add, *before.order.remove):
            print(f"{node}: it did not have {each}; it stays without, should it ever get it (seamlessflow tag {node} {each})")


def drain(node: NodeArgument, nats: NatsUrl = None, undo: Annotated[bool, typer.Option("--undo")] = False) -> None:
    """Let a node hand back what it has and take nothing new, until --undo."""
    _order(nats, node, lambda order, view: order.model_copy(update={"drain": not undo}))


def _checked(tags: list[str]) -> tuple[str, ...]:
    for given in tags:
        try:
            component(given)
        except ValueError as wrong:
            raise ConfigError(str(wrong)) from wrong
        if given in ROLES and given not in ("rollout", "train"):
            raise ConfigError(f"{given} goes with the service itself; to take all work from a node, drain it")
    return tuple(dict.fromkeys(tags))


def with_tags(order: NodeOrder, tags: tuple[str, ...], announced: tuple[str, ...]) -> NodeOrder:
    """The order after giving a node tags: announced ones need only not be taken away, and roles can only be given back."""
    new = [each for each in tags if each not in (*order.add, *announced, *ROLES)]
    return order.model_copy(
        update={"add": (*order.add, *new), "remove": tuple(each for each in order.remove if each not in tags)}
    )


def without_tags(order: NodeOrder, tags: tuple[str, ...], otherwise: tuple[str, ...]) -> NodeOrder:
    """The order after taking tags away. One that is only there by hand is no longer added; any other is kept away for good.

    otherwise: what it has without an order: announced, or by a rule.
    """
    only_added = [each for each in tags if each in order.add and each not in otherwise]
    gone = [each for each in tags if each not in (*only_added, *order.remove)]
    return order.model_copy(
        update={"add": tuple(each for each in order.add if each not in tags), "remove": (*order.remove, *gone)}
    )


def _order(nats: str | None, name: str, change: Callable[[NodeOrder, NodeView], NodeOrder]) -> NodeView:
    """Carry out a change and show what the node is then; returns what it was."""

    async def carry_out() -> tuple[NodeView, NodeView, bool]:
        async with Client.open(any_address(nats)) as client:
            before = await one_node(client, name)
            await client.order(name, lambda order: change(order, before))
            return before, await one_node(client, name), await is_served(client)

    before, view, served = asyncio.run(carry_out())
    print(f"{name}: {', '.join(tag_words(view)) or 'no tags'}{'; drained' if view.order.drain else ''}")
    for role in ("rollout", "train"):
        if role in view.order.remove and role not in view.announced:
            print(f"{name}: no process there announces {role}; it stays without, should one come")
    if not served:
        print("no scheduler is there: it counts once one is")
    return before
