"""The interface of a learner: one optimiser step on a batch, weights, optimiser state, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from seamlessflow.errors import SeamlessFlowError
from seamlessflow_trainer.data.batch import TrainingBatch


class NotFinite(SeamlessFlowError):
    """A loss or gradient was infinite or not a number. The weights are as they were before the step."""


class Abandoned(SeamlessFlowError):
    """The step was given up between two micro-batches because somebody asked for it. The weights are as before it."""


@dataclass(slots=True)
class StepFigures:
    """What a step measured, over the trained tokens with an advantage."""

    loss: float = 0.0
    grad_norm: float = 0.0
    importance_ratio: float = 0.0
    """Mean before the cap."""
    truncated_fraction: float = 0.0
    num_computed: int = 0
    """Tokens that these are means over; 0: no member had an advantage, and nothing was computed or changed."""
    gap_sum: float = 0.0
    gap_tokens: int = 0
    gaps: list[Tensor] = field(default_factory=list)
    """Of each part of the batch: [N] float32, |trainer - engine| of its trained tokens; NaN: not computed."""

    @property
    def logprob_gap(self) -> float | None:
        """Mean |trainer - engine| over tokens of the current version; None: there were none."""
        return self.gap_sum / self.gap_tokens if self.gap_tokens else None


class StepLearner(Protocol):
    """Weights and an optimiser. Every method blocks and is called in a worker thread, one at a time."""

    @property
    def vocab_size(self) -> int:
        """Token ids lie below it."""
        ...

    def train_parts(
        self, parts: Iterable[TrainingBatch], *, learning_rate: float, num_nodes: int, should_stop: Callable[[], bool]
    ) -> StepFigures:
        """One optimiser step. Raises NotFinite, or Abandoned soon after ``should_stop`` turned true: nothing was changed then.

        parts: of one batch, as they come: iterating waits for the next, and raises Abandoned. At least one comes.
        num_nodes: devices that are held for this step, its own included. One that takes its steps alone uses its own.
        """
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """What is published, under the names the engine knows (``TrainsAdapters``: PEFT's). Live: read before the next step."""
        ...

    def optimizer_state(self) -> Mapping[str, Tensor]:
        """All else that a step depends on. Live."""
        ...

    def restore(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> None:
        """Go on exactly where these were taken. Raises BadInput when they are another model's."""
        ...


@runtime_checkable
class TrainsAdapters(Protocol):
    """A learner whose ``weights`` are adapters to others, which it leaves as they are."""

    @property
    def adapter_config(self) -> Mapping[str, object]:
        """What adapter_config.json says of them."""
        ...

    def base_weights(self) -> Mapping[str, Tensor]:
        """The others, under the names the engine knows."""
        ...
