"""Two living processes under one name: they overwrite each other's presence, so their instances alternate. Pure.

A restart shows a new instance once and the old one never again; an instance that comes back after another lives beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Name = tuple[str, str]
"""Node and service."""
REMEMBERED_SECONDS = 60.0
"""An instance that was not seen for this long is forgotten: its name may be used again."""
SAID_SECONDS = 10.0
"""How long two are said to be there after they were last seen to alternate."""


@dataclass
class Doubles:
    """Fed with the instance that each presence names at a time."""

    _seen: dict[Name, dict[str, float]] = field(default_factory=dict)
    """By process: its instances, the newest last, each with when it was last seen."""
    _found: dict[Name, tuple[tuple[str, str], float]] = field(default_factory=dict)

    def observe(self, instances: Mapping[Name, str], now: float) -> dict[Name, tuple[str, str]]:
        """Names that two processes have now, with the two instances. ``now``: seconds that never go back."""
        self._forget(now)
        for name, instance in instances.items():
            seen = self._seen.setdefault(name, {})
            newest = next(reversed(seen), instance)
            if instance != newest and instance in seen:
                one, other = sorted((instance, newest))
                self._found[name] = (one, other), now
            seen.pop(instance, None)
            seen[instance] = now
        return {name: pair for name, (pair, _) in self._found.items()}

    def _forget(self, now: float) -> None:
        kept = {
            name: {each: at for each, at in seen.items() if now - at < REMEMBERED_SECONDS} for name, seen in self._seen.items()
        }
        self._seen = {name: seen for name, seen in kept.items() if seen}
        self._found = {name: found for name, found in self._found.items() if now - found[1] < SAID_SECONDS}
