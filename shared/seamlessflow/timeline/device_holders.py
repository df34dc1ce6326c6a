"""The holder of a node's device over time: leases and answers of its services, folded into spans without gaps. Pure.

A lease is published with its epoch, and its services answer with that epoch. A lease, its taking and its releasing may
be stored in any order, so spans are cut by epochs and not by the order of events:

    epoch e begins ─── another's device, or unowned ─────────▶ taken(e) ─── held ───▶ epoch e + 1 begins
                              HAND_OVER, LOAD at first                    (goes on if the same service keeps it)
    epoch e, idle ──── still held ───▶ released(e) ─── idle, or frozen with what the worker kept ───▶
                          HAND_OVER
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from seamlessflow.contracts import Role, RoleAssigned, RoleReleased, RoleTaken, Service

from .spans import SpanKind

WORKER, TRAINER = Service.ROLLOUT_WORKER.value, Service.TRAINER.value
_HOLDER = {Role.ROLLOUT: WORKER, Role.TRAIN: TRAINER}
_ROLE = {service: role for role, service in _HOLDER.items()}


@dataclass(frozen=True, slots=True)
class RoleSpan:
    """``holder``: the service that has the device. Without one, ``kind`` classifies the time."""

    start: float
    end: float
    holder: str = ""
    kind: SpanKind = SpanKind.IDLE
    reason: str = ""
    epoch: int | None = None
    gang: tuple[str, ...] = ()
    is_silent: bool = False
    """AWAY after a holder that never released it: it was dead before this begins."""


@dataclass(slots=True)
class _Epoch:
    """The events of one lease."""

    begins: float
    """The earliest event: a lease is written before it is published, and its services may be faster."""
    role: Role | None = None
    """None: the lease itself is not in the journal."""
    reason: str = ""
    left: bool = False
    gang: tuple[str, ...] = ()
    taken: dict[str, float] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    num_frozen: int = 0
    """Generations that its worker kept on release."""


class NodeRoles:
    """The leases of one node. Memory: a record for each epoch."""

    def __init__(self) -> None:
        self._epochs: dict[int, _Epoch] = {}

    def apply(self, event: RoleAssigned | RoleTaken | RoleReleased, time: float) -> None:
        """Take a word in."""
        epoch = self._epochs.setdefault(event.epoch, _Epoch(time))
        epoch.begins = min(epoch.begins, time)
        match event:
            case RoleAssigned():
                epoch.role, epoch.reason, epoch.left, epoch.gang = event.role, event.reason, event.left, event.gang
            case RoleTaken():
                epoch.taken[event.service] = min(time, epoch.taken.get(event.service, time))
            case RoleReleased():
                epoch.released[event.service] = min(time, epoch.released.get(event.service, time))
                if event.service == WORKER:
                    epoch.num_frozen = event.num_frozen

    @property
    def is_device(self) -> bool:
        """Whether it was ever to roll out or to train; agent-runners and trajectory-managers are not."""
        return any(_wanted(epoch) for epoch in self._epochs.values())

    def stretches(self, start: float, end: float) -> list[RoleSpan]:
        """From ``start`` to ``end`` without gaps, in order; before its first lease it is AWAY."""
        return [role_span for role_span in self._stretches(start, end) if role_span.end > role_span.start]

    def _stretches(self, start: float, end: float) -> Iterator[RoleSpan]:
        numbers = sorted(self._epochs)
        begins = [min(max(self._epochs[number].begins, start), end) for number in numbers]
        for place in range(1, len(begins)):
            begins[place] = max(begins[place], begins[place - 1])
        yield RoleSpan(start, begins[0] if begins else end, kind=SpanKind.AWAY, reason="not of the run yet")
        holder, has_held = "", False
        for place, number in enumerate(numbers):
            since, until = begins[place], begins[place + 1] if place + 1 < len(begins) else end
            epoch = self._epochs[number]
            wanted = _wanted(epoch)
            change = self._change(epoch, holder, wanted, since, until)
            waiting = SpanKind.HAND_OVER if has_held else SpanKind.LOAD
            yield RoleSpan(since, change, kind=waiting, reason=epoch.reason, epoch=number)
            is_silent = epoch.left and bool(holder) and holder not in epoch.released
            if change < until or wanted == holder:
                holder = wanted
                has_held = has_held or bool(holder)
            kind = SpanKind.AWAY if epoch.left else SpanKind.FROZEN if epoch.num_frozen else SpanKind.IDLE
            yield RoleSpan(change, until, holder, kind, _reason(epoch, holder), number, epoch.gang, is_silent)

    @staticmethod
    def _change(epoch: _Epoch, holder: str, wanted: str, since: float, until: float) -> float:
        """When the device follows the lease, within the lease's time; its end when that never came."""
        if wanted == holder:
            return since
        if wanted:
            return min(max(epoch.taken.get(wanted, until), since), until)
        unsaid = since if epoch.left else until  # a node that is gone publishes no release
        return min(max(epoch.released.get(holder, unsaid), since), until)


def _reason(epoch: _Epoch, holder: str) -> str:
    """Why, and what waits for the device meanwhile."""
    if holder == WORKER or epoch.left or not epoch.num_frozen:
        return epoch.reason
    return f"{epoch.reason + '; ' if epoch.reason else ''}frozen with {epoch.num_frozen} generations"


def _wanted(epoch: _Epoch) -> str:
    """The service that the lease gives the device to; empty: none."""
    if epoch.role is not None:
        return _HOLDER.get(epoch.role, "")
    return next((service for service in epoch.taken if service in _ROLE), "")
