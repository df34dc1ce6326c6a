"""Packed rows as the tensors a causal language model takes.

Dimensions: B rows, T tokens of the longest row, U places where a logit is needed, K trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .packing import Row


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes through the model at a time."""

    input_ids_BT: Tensor
    positions_BT: Tensor
    mask_B1TT: Tensor
    """bool; True: the row's token (third) sees that token (fourth). Padding sees itself: seeing nothing gives NaN."""
    sources_U: Tensor
    """Flat indices into B*T whose logits are needed; several trained tokens may share one."""
    pick_K: Tensor
    """Which of the sources predicts each trained token."""
    targets_K: Tensor
    tokens_K: Tensor
    """The trained tokens' numbers within the step."""

    def to(self, device: torch.device) -> MicroBatch:
        """The same on a device."""
        return MicroBatch(*(getattr(self, name).to(device, non_blocking=True) for name in self.__slots__))


def to_micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Rows padded to the longest of them."""
    longest = max(len(row.token_ids) for row in rows)
    input_ids_BT = torch.zeros(len(rows), longest, dtype=torch.long)
    positions_BT = torch.zeros(len(rows), longest, dtype=torch.long)
    mask_B1TT = torch.zeros(len(rows), 1, longest, longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        input_ids_BT[index, : len(row.token_ids)] = torch.tensor(row.token_ids)
        positions_BT[index, : len(row.token_ids)] = torch.tensor(row.positions)
        _draw_mask(mask_B1TT[index, 0], row)
    picks = [(index * longest + pick.source, pick) for index, row in enumerate(rows) for pick in row.picks]
    sources_U, pick_K = torch.unique(torch.tensor([source for source, _ in picks], dtype=torch.long), return_inverse=True)
    return MicroBatch(
        input_ids_BT=input_ids_BT,
        positions_BT=positions_BT,
        mask_B1TT=mask_B1TT,
        sources_U=sources_U,
        pick_K=pick_K,
        targets_K=torch.tensor([pick.target for _, pick in picks], dtype=torch.long),
        tokens_K=torch.tensor([pick.token for _, pick in picks], dtype=torch.long),
    )


def _draw_mask(mask_TT: Tensor, row: Row) -> None:
    mask_TT.fill_diagonal_(True)
    for branch in row.branches:
        mask_TT[branch.start : branch.end, branch.start : branch.end].logical_or_(
            torch.ones(branch.end - branch.start, branch.end - branch.start, dtype=torch.bool).tril_()
        )
        if branch.ancestors:
            mask_TT[branch.start : branch.end, torch.tensor(branch.ancestors)] = True
