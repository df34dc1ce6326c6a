"""How far an engine's logprobs may lie from the trainer's, and the warning when they lie further. Pure.

    gap of a step ──▶ GapWatch ──▶ metrics of StepTaken ──▶ gap_warning: status, the followed run, the summary

The gap is the mean of |trainer - engine| over tokens that the present weights sampled
(seamlessflow_trainer.algorithms.off_policy_correction).
Rounding is part of it; a stale prefix cache, another temperature or weights that were not loaded are not. One step can be
chance: an alarm takes several in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

GAP, GAP_LIMIT, GAP_ALARM = "logprob_gap", "logprob_gap_limit", "logprob_gap_alarm"
"""Metrics of a step: what was measured, what is allowed, for how many steps in a row it has been an alarm (0: it is none)."""
GAP_OF_NODE = "logprob_gap/"
"""And the gap of what each node sampled, in a step beyond its limit."""

GAP_LIMITS = {"float32": 0.05, "bfloat16": 0.1}
"""Nats, by served precision; docs/adr/0017 has what was measured. Other precisions: as bfloat16."""
GAP_STEPS = 3
"""So many steps in a row beyond the limit are an alarm."""


def gap_limit(dtype: str) -> float:
    """What rounding in a served precision explains. ``dtype``: as config.json names it."""
    return GAP_LIMITS.get(dtype, GAP_LIMITS["bfloat16"])


@dataclass(frozen=True, slots=True)
class GapWatch:
    """How many steps in a row were beyond the limit. One that measured nothing neither adds to them nor ends them."""

    limit: float
    num_steps: int = GAP_STEPS
    num_beyond: int = 0

    def after(self, gap: float | None) -> GapWatch:
        """With one more step. A gap that is not a number is beyond every limit."""
        if gap is None:
            return self
        return replace(self, num_beyond=0 if gap <= self.limit else self.num_beyond + 1)

    @property
    def is_beyond(self) -> bool:
        """Whether the last step was beyond the limit."""
        return self.num_beyond > 0

    @property
    def num_alarms(self) -> int:
        """Steps in a row that were alarms, the last one among them. 0: it is none."""
        return max(0, self.num_beyond - self.num_steps + 1)

    def metrics(self) -> dict[str, float]:
        """The limit, and whether it is an alarm, for StepTaken."""
        return {GAP_LIMIT: self.limit, GAP_ALARM: float(self.num_alarms)}


def gap_warning(step: int, weights_version: int, metrics: Mapping[str, float], engine: str = "") -> str | None:
    """What a person should read of a step's metrics, or None. weights_version: the one that sampled.

    engine: as in the run file. Who is furthest off is named first; nodes that are within the limit are not to blame.
    """
    if not metrics.get(GAP_ALARM):
        return None
    limit = metrics[GAP_LIMIT]
    nodes = {name.removeprefix(GAP_OF_NODE): gap for name, gap in metrics.items() if name.startswith(GAP_OF_NODE)}
    blamed = sorted((node for node, gap in nodes.items() if not gap <= limit), key=lambda node: -nodes[node])
    who = ", ".join(f"{node} {nodes[node]:.3g}" for node in blamed) or "no node in particular"
    on = f" (engine {engine}, version {weights_version}: {who})"
    return (
        f"logprob gap {metrics[GAP]:.3g} > {limit:.3g} at step {step} and before{on}: what is trained is not what was "
        f"sampled; look with: seamlessflow doctor --engine {engine or 'NAME'}"
    )
