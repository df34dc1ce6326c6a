"""What the hardware of a node is, of which several processes say something. Pure.

Always true: it does not matter in which order they said it, nor who said it last. What is true of a device is so for whoever
uses it, so it may be told to either process; where both know a fact, the rollout-worker's counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from .contracts import Hardware, Service

_FIRST = (Service.ROLLOUT_WORKER.value, Service.TRAINER.value)


def hardware_of(said: Mapping[str, Hardware]) -> Hardware | None:
    """Each fact from the first process that knows it. ``said``: by service. None: nobody said anything."""
    if not said:
        return None
    services = sorted(said, key=lambda service: (_FIRST.index(service) if service in _FIRST else len(_FIRST), service))
    facts = [said[service].model_dump() for service in services]
    return Hardware.model_validate({name: next((f[name] for f in facts if f[name]), facts[0][name]) for name in facts[0]})
