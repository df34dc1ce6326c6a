"""Where the node-time of a simulated run went that its bound does not know. Pure.

    all node-time = what trained tokens take at least + what training did not finish or need
                  + what sampled tokens take at least + smaller batches than fit + contexts prefilled again + edges
                  + hand-overs + loading weights + idle

The floor of a sampled token is that of the tokens that were trained on in the window. Those sampled in it have other contexts,
so ``edges`` may be negative: the longer the window the smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cost import Cost
from .simulator_account import Account, Doing


@dataclass(frozen=True, slots=True)
class Effort:
    """Decode steps of engines, and the tokens that came of them."""

    steps: int = 0
    sampled: int = 0

    def __add__(self, other: Effort) -> Effort:
        return Effort(self.steps + other.steps, self.sampled + other.sampled)

    def __sub__(self, other: Effort) -> Effort:
        return Effort(self.steps - other.steps, self.sampled - other.sampled)


def losses_of(account: Account, effort: Effort, cost: Cost, *, batch: float) -> Mapping[str, float]:
    """Each cause's share of all node-time since the warm-up. Together they are what is missing from 1 in the share of the bound
    that was reached.

    effort: of all engines since the warm-up. batch: sequences side by side that the floor is made of.
    """
    if not account.floor_tokens or not account.node_seconds:
        return {}
    rollout_floor = account.rollout_floor / account.floor_tokens * account.sampled
    trained = account.trained + account.masked
    train_floor = account.train_floor / account.floor_tokens * trained
    small = cost.decode_fixed * (effort.steps - effort.sampled / batch)
    again = cost.prefill_seconds(account.prefilled_again)
    used = account.trained / trained if trained else 1.0
    share = account.rollout_floor / (account.rollout_floor + account.train_floor)
    floor = (account.rollout_floor + account.train_floor) / account.floor_tokens
    worked = share * used * account.sampled + (1 - share) * account.trained
    seconds = {
        "small batches": small,
        "prefilled again": again,
        "hand-over": account.seconds(Doing.HANDOVER),
        "loading": account.seconds(Doing.LOAD),
        "idle": account.seconds(Doing.IDLE),
        "too old": (1 - used) * (rollout_floor + train_floor),
        "unused": max(0.0, worked - account.trained) * floor,
        "edges of training": account.seconds(Doing.TRAIN) - train_floor,
        "edges of rollout": account.seconds(Doing.ROLLOUT) - rollout_floor - small - again,
    }
    return {cause: each / account.node_seconds for cause, each in seconds.items()}
