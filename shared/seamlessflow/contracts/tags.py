"""Tags: what a node has, and what a piece of work needs. Holding a tag is being subscribed to its subject. Pure.

    component   h800             one thing that nodes have or have not: announced, added by hand, or by a rule
    work tag    h800+rollout     what a generation needs: all of these at once; one token of its subject
    class       long+rollout     the same need, of generations that are expected to be long; who pulls them when differs
    slot        rollout+v3       the same need, of generations that keep a weights version; who has that version pulls them

A node serves a work tag when it has all its components. ``rollout`` is a component of each: without it nothing is sampled.
In a run whose tags have classes ``long`` is no component that nodes have: whoever serves a tag serves the long generations of
that tag. In any other run it is a component like others, so callers pass the kind of run. Slots likewise, in a run
with ``weights.pinned``.
Always true: the same set of components is spelled in one way, whatever order and however often they were given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

ROLLOUT_TAG = "rollout"
ROLES = ("rollout", "train", "serve", "schedule")
"""Components that processes announce by being what they are; they cannot be given to a node without such a process."""
_SAMPLE_NOTHING = ("serve", "schedule")
LONG = "long"
"""The class of generations that are expected to be long, in work tags of runs with ``fleet.long_tail``."""
SLOT = re.compile(r"v[0-9]+\Z")
"""The class of generations that keep a weights version, in work tags of runs with ``weights.pinned``: versions are without
end and consumers are not, so version v is in slot v modulo the number of slots."""
MAX_WORK_TAGS = 8
"""Different work tags of one run: the server's permissions name every consumer, so there is a highest count."""
MAX_COMPONENTS = 4
"""Of one tag, ``rollout`` included: it is one token of a subject."""
_COMPONENT = re.compile(r"[a-z0-9-]{1,32}\Z")


def component(name: str) -> str:
    """The name itself. Raises ValueError, with the allowed characters, for a name that is no component."""
    if not _COMPONENT.match(name):
        raise ValueError(f"a tag is 1 to 32 of a-z, 0-9 and '-', got {name!r}")
    return name


def canonical(tag: str) -> str:
    """The one spelling of a tag. Raises ValueError for components that are none, and for too many of them."""
    parts = sorted({component(part) for part in tag.split("+")})
    if len(parts) > MAX_COMPONENTS:
        raise ValueError(f"a tag has up to {MAX_COMPONENTS} components, got {len(parts)}: {tag!r}")
    return "+".join(parts)


def work_tag(tag: str) -> str:
    """A tag that generations may carry: canonical, and with ``rollout``, which is always implied.

    Raises ValueError as ``canonical`` does, and for roles of services that sample nothing.
    """
    tag = canonical(f"{tag}+{ROLLOUT_TAG}")
    if others := [part for part in components(tag) if part in _SAMPLE_NOTHING]:
        raise ValueError(f"{' and '.join(others)} is what services without a device announce: no node that samples has it")
    return tag


def long_tag(tag: str) -> str:
    """The work tag of the generations that need the same and are expected to be long. Raises ValueError for a full tag."""
    return canonical(f"{tag}+{LONG}")


@cache
def is_long(tag: str, *, has_classes: bool) -> bool:
    """Whether a work tag, of a run whose tags have classes or have none, is of generations that are expected to be long."""
    return has_classes and LONG in components(tag)


def slot_tag(tag: str, slot: int) -> str:
    """The work tag of the generations that need the same and keep a version of this slot. Raises ValueError for a full tag."""
    return canonical(f"{tag}+v{slot}")


@cache
def slot_of(tag: str) -> int | None:
    """The slot of a work tag, of a run whose tags have slots. None: it has none."""
    return next((int(part[1:]) for part in components(tag) if SLOT.match(part)), None)


@cache
def needed_tag(tag: str, *, has_classes: bool, has_slots: bool = False) -> str:
    """What a work tag, of a run whose tags have classes or slots or have none, asks of a node: without them."""
    parts = components(tag)
    return "+".join(part for part in parts if not (has_classes and part == LONG) and not (has_slots and SLOT.match(part)))


@cache
def components(tag: str) -> tuple[str, ...]:
    """What a node must have to serve a tag."""
    return tuple(tag.split("+"))


def missing(tag: str, has: Collection[str]) -> tuple[str, ...]:
    """Components of a tag that are not among those a node has; empty when it serves the tag."""
    return tuple(part for part in components(tag) if part not in has)


def places(tags: Iterable[str]) -> dict[str, str]:
    """What stands for each work tag of a run in the names of its consumers.

    A consumer's name is one token, and permissions match whole tokens: so names that users choose are numbered
    within the run, and the permissions list the numbers. The plain tag stands for itself.
    """
    others = [tag for tag in sorted(set(tags)) if tag != ROLLOUT_TAG]
    return {tag: tag if tag == ROLLOUT_TAG else f"t{others.index(tag) + 1}" for tag in tags}


ALL_PLACES = (ROLLOUT_TAG, *(f"t{number}" for number in range(1, MAX_WORK_TAGS + 1)))
"""Every place that ``places`` can give to the tags of a run."""

_PATTERN = rf"^[a-z0-9-]{{1,32}}(\+[a-z0-9-]{{1,32}}){{0,{MAX_COMPONENTS - 1}}}$"
Tag = Annotated[str, AfterValidator(canonical), WithJsonSchema({"type": "string", "pattern": _PATTERN})]
"""A component, or several joined by "+", in its one spelling."""
