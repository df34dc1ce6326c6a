"""How a fleet's time was spent: shares of each kind, by node and over all, in a window. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .spans import BUSY, Span, SpanKind, Timeline

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Shares:
    """Of one node, or of all together."""

    seconds: float
    """Of the window, and of all nodes where these are several."""
    by_kind: Mapping[SpanKind, float]
    """Seconds of each; they add up to ``seconds`` where spans cover the window. Of a rollout that sampled only a part, the
    rest counts as WAITING."""

    def share(self, *kinds: SpanKind) -> float:
        """Of the whole, 0 to 1."""
        return sum(self.by_kind.get(kind, 0.0) for kind in kinds) / self.seconds if self.seconds else 0.0

    @property
    def present_seconds(self) -> float:
        """In which it was of the run, and alive."""
        return self.seconds - self.by_kind.get(SpanKind.AWAY, 0.0)

    @property
    def busy(self) -> float:
        """The share of its time of the run in which it sampled or trained, 0 to 1; of HELD time nothing is counted."""
        busy = sum(self.by_kind.get(kind, 0.0) for kind in BUSY)
        return busy / self.present_seconds if self.present_seconds > 0 else 0.0

    @property
    def hand_over(self) -> float:
        """The same for hand-overs."""
        return self.by_kind.get(SpanKind.HAND_OVER, 0.0) / self.present_seconds if self.present_seconds > 0 else 0.0


def steady_window(lanes: Timeline) -> Window | None:
    """From the first step to the last one. None: there are not two."""
    if len(lanes.steps) < 2 or lanes.steps[-1].time <= lanes.steps[0].time:
        return None
    return lanes.steps[0].time, lanes.steps[-1].time


def shares_by_node(spans: Iterable[Span], window: Window) -> dict[str, Shares]:
    """Every node with a span, by name."""
    since, until = window
    found: dict[str, dict[SpanKind, float]] = {}
    for span in spans:
        kinds = found.setdefault(span.node, {})
        seconds = min(span.end, until) - max(span.start, since)
        if seconds <= 0:
            continue
        if span.kind is SpanKind.ROLLOUT:
            kinds[SpanKind.ROLLOUT] = kinds.get(SpanKind.ROLLOUT, 0.0) + seconds * span.busy
            kinds[SpanKind.WAITING] = kinds.get(SpanKind.WAITING, 0.0) + seconds * (1 - span.busy)
        else:
            kinds[span.kind] = kinds.get(span.kind, 0.0) + seconds
    return {node: Shares(until - since, kinds) for node, kinds in sorted(found.items())}


def total(shares: Iterable[Shares]) -> Shares:
    """Several nodes as one."""
    seconds, kinds = 0.0, dict[SpanKind, float]()
    for each in shares:
        seconds += each.seconds
        for kind, of_kind in each.by_kind.items():
            kinds[kind] = kinds.get(kind, 0.0) + of_kind
    return Shares(seconds, kinds)
