"""Packing: the samples of a group share what they have in common, and every shared token goes through the model once.

The samples of one group, sorted, are the depth-first walk of their prefix tree; the walk is one row:

    samples   p p p a b        row        p p p a b c c d
              p p p a c c      position   0 1 2 3 4 4 5 3
              p p p d          c sees     p p p a . c

Each token's position is its depth and it sees its ancestors only (tree attention), so a row gives the very logprobs that
each sample gives alone. A group prompt is computed once, and so are equal answers and the shared turns of a conversation.
Always true: each trained token of each sample is picked exactly once; the result depends on nothing but the input.
Pure; lists here, tensors in ``microbatches``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Path:
    """One sample made ready. The token at ``trained[i]`` is number ``first + i`` of the step's trained tokens.

    trained: ascending indices into ``token_ids``, each >= 1: a token is predicted from the one before it.
    """

    token_ids: Sequence[int]
    trained: Sequence[int]
    first: int

    @property
    def inputs(self) -> Sequence[int]:
        """What the model must read: everything before the last trained token."""
        return self.token_ids[: self.trained[-1]]


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens ``start`` to ``end`` of a row that follow each other; they also see the row's tokens ``ancestors``."""

    start: int
    end: int
    ancestors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pick:
    """Trained token number ``token`` has id ``target`` and is predicted at index ``source`` of its row."""

    token: int
    source: int
    target: int


@dataclass(slots=True)
class PackedRow:
    """A prefix tree, flattened."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    picks: list[Pick] = field(default_factory=list)


def pack_group(paths: Sequence[Path], *, row_tokens: int) -> list[PackedRow]:
    """Rows of at most ``row_tokens`` tokens, longer only where a single sample is. Paths without trained tokens vanish."""
    rows: list[PackedRow] = []
    row, previous, walked = PackedRow(), list[int](), list[int]()
    for path in sorted((p for p in paths if p.trained), key=lambda p: (list(p.inputs), p.first)):
        inputs = list(path.inputs)
        shared = common_prefix(previous, inputs)
        if row.token_ids and len(row.token_ids) + len(inputs) - shared > row_tokens:
            rows.append(row)
            row, shared = PackedRow(), 0
        walked = _grow(row, walked[:shared], inputs)
        previous = inputs
        for offset, index in enumerate(path.trained):
            row.picks.append(Pick(path.first + offset, walked[index - 1], path.token_ids[index]))
    return [*rows, row] if row.token_ids else rows


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for index, (mine, theirs) in enumerate(zip(left, right, strict=False)):
        if mine != theirs:
            return index
    return min(len(left), len(right))


def _grow(row: PackedRow, ancestors: list[int], inputs: list[int]) -> list[int]:
    """Add what comes after ``ancestors`` of ``inputs``; returns where in the row each of the inputs is."""
    start, new = len(row.token_ids), inputs[len(ancestors) :]
    if new:
        row.token_ids += new
        row.positions += range(len(ancestors), len(inputs))
        row.branches.append(Branch(start, start + len(new), tuple(ancestors)))
    return ancestors + list(range(start, start + len(new)))


def plan_micro_batches(rows: Sequence[PackedRow], *, token_budget: int) -> list[list[PackedRow]]:
    """Rows that go through the model together: rows times the longest of them is at most ``token_budget``.

    A row longer than the budget goes alone. Longest first, so that little is padding and memory fails early if it fails.
    """
    batches: list[list[PackedRow]] = []
    for row in sorted(rows, key=lambda r: -len(r.token_ids)):  # stable: equal lengths keep their order
        longest = len(batches[-1][0].token_ids) if batches else 0
        if batches and longest * (len(batches[-1]) + 1) <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


# Packed rows as the tensors a causal language model takes.
#
# Dimensions: B rows, T tokens of the longest row, U places where a logit is needed, K trained tokens.


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


def to_micro_batch(rows: Sequence[PackedRow]) -> MicroBatch:
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


def _draw_mask(mask_TT: Tensor, row: PackedRow) -> None:
    mask_TT.fill_diagonal_(True)
    for branch in row.branches:
        mask_TT[branch.start : branch.end, branch.start : branch.end].logical_or_(
            torch.ones(branch.end - branch.start, branch.end - branch.start, dtype=torch.bool).tril_()
        )
        if branch.ancestors:
            mask_TT[branch.start : branch.end, torch.tensor(branch.ancestors)] = True
