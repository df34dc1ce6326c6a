"""Rules that give tags to nodes by what their hardware is. Pure, and no language: one comparison.

    flops / bandwidth > 250        names of ``Hardware``, a quotient of two if need be, compared with a number
    memory >= 80e9

A node whose facts are not known fulfils no rule. Units: operations a second, bytes a second, bytes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from seamlessflow.contracts.fleet import Hardware

FACTS: Mapping[str, Callable[[Hardware], float]] = {
    "flops": lambda hardware: hardware.flops,
    "bandwidth": lambda hardware: hardware.bandwidth_bytes,
    "memory": lambda hardware: hardware.memory_bytes,
}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_RULE = re.compile(
    r"\s*(?P<fact>[a-z]+)\s*(?:/\s*(?P<by>[a-z]+)\s*)?(?P<compare>>=|<=|>|<)\s*(?P<number>\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*\Z"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One comparison; see the module."""

    fact: str
    by: str | None
    compare: str
    number: float

    def holds(self, hardware: Hardware | None) -> bool:
        """Whether it is so of a device. Unknown facts are 0, and decide nothing."""
        if hardware is None:
            return False
        value, by = FACTS[self.fact](hardware), 1.0 if self.by is None else FACTS[self.by](hardware)
        return value > 0 and by > 0 and _COMPARISONS[self.compare](value / by, self.number)


def parse_rule(text: str) -> Rule:
    """The rule in a text. Raises ValueError with an example of a rule."""
    found = _RULE.match(text)
    names = [] if found is None else [found["fact"], *([found["by"]] if found["by"] else [])]
    if found is None or not all(name in FACTS for name in names):
        raise ValueError(
            f"expected a comparison like 'flops/bandwidth > 250' or 'memory >= 80e9' of {', '.join(FACTS)}, got {text!r}"
        )
    return Rule(found["fact"], found["by"], found["compare"], float(found["number"]))
