"""The learner: a causal language model, its optimiser, and one step of learning. Blocks; runs in a worker thread.

Master weights, gradients and optimiser state are float32; matrix products run in the precision the weights are served
in where the device is fast at it (``precision``), so that engine and trainer round alike. Logits are computed only where
a sampled token is predicted: the vocabulary is the widest layer there is.
Knows nothing of runs, groups or the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.errors import BadInput
from seamlessflow_trainer.algorithms.grpo import policy_loss
from seamlessflow_trainer.algorithms.off_policy_correction import importance_ratios, logprob_gap
from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.data.packing import MicroBatch, Path, pack_group, plan_micro_batches, to_micro_batch

from .base import Abandoned, NotFinite, StepFigures

STATE_KINDS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's tensors for each parameter."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What stays the same over a run."""

    temperature: float
    """The engine's; logprobs are those of softmax(logits / temperature)."""
    weight_decay: float
    max_grad_norm: float
    importance_cap: float
    micro_batch_tokens: int


class Learner:
    """``model``: a transformers causal language model with float32 weights, on the device it shall learn on."""

    def __init__(self, model: Any, settings: Hyperparameters, *, compute_dtype: torch.dtype = torch.float32) -> None:
        self._model = model.train()
        self._body, self._head = model.base_model, model.get_output_embeddings()
        self._settings = settings
        self._compute_dtype = compute_dtype
        self._device = next(model.parameters()).device
        trained = ((name, each) for name, each in model.named_parameters() if each.requires_grad)  # tied ones once
        self._parameters: dict[str, torch.nn.Parameter] = dict(trained)
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=0.0, weight_decay=settings.weight_decay, fused=True)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of matrix products."""
        return self._compute_dtype

    @property
    def vocab_size(self) -> int:
        return int(self._head.weight.shape[0])

    def train(
        self,
        batch: TrainingBatch,
        *,
        learning_rate: float,
        num_nodes: int = 1,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> StepFigures:
        """``train_parts`` of a batch that is whole."""
        return self.train_parts([batch], learning_rate=learning_rate, num_nodes=num_nodes, should_stop=should_stop)

    def train_parts(
        self,
        parts: Iterable[TrainingBatch],
        *,
        learning_rate: float,
        num_nodes: int = 1,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> StepFigures:
        """One optimiser step, on this device alone. Raises NotFinite or Abandoned; then nothing was changed.

        parts: at least one; taken as they come, and waited for. The step is that of all of them as one batch, up to rounding.
        """
        self._optimizer.zero_grad(set_to_none=True)
        try:
            figures = self._gradients(parts, should_stop)
            if figures.num_computed:
                figures.grad_norm = self._clip()
                _require_finite(figures)
                for group in self._optimizer.param_groups:
                    group["lr"] = learning_rate
                self._optimizer.step()
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return figures

    def _gradients(self, parts: Iterable[TrainingBatch], should_stop: Callable[[], bool]) -> StepFigures:
        """Of the loss of all parts together. How many tokens that is shows only at the end: until then those of the first
        part stand for it."""
        figures, unit, total = StepFigures(), 0, 0
        for batch in parts:
            unit, total = unit or max(1, batch.num_trained), total + batch.num_trained
            figures.gaps.append(torch.full((batch.num_trained,), float("nan")))
            paths = batch.teaching_paths
            figures.num_computed += sum(len(path.trained) for group in paths for path in group)
            for micro_batch in self._micro_batches(paths):
                if should_stop():
                    raise Abandoned("the step was given up on request; nothing was changed")
                self._accumulate(micro_batch.to(self._device), batch, figures, unit)
        if figures.num_computed:
            figures.loss *= unit / total
            figures.importance_ratio /= figures.num_computed
            figures.truncated_fraction /= figures.num_computed
            if total != unit:
                gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
                torch._foreach_mul_(gradients, unit / total)
        return figures

    def _micro_batches(self, groups: Sequence[Sequence[Path]]) -> Iterator[MicroBatch]:
        budget = self._settings.micro_batch_tokens
        rows = [row for paths in groups for row in pack_group(paths, row_tokens=budget)]
        return map(to_micro_batch, plan_micro_batches(rows, token_budget=budget))

    def _forward(self, micro: MicroBatch) -> Tensor:
        """[K] float32 logprobs of a micro-batch's trained tokens."""
        with torch.autocast(self._device.type, self._compute_dtype, enabled=self._compute_dtype != torch.float32):
            # An additive mask in the dtype that attention computes in: a boolean one is converted in every layer.
            mask_B1TT = torch.zeros(micro.mask_B1TT.shape, dtype=self._compute_dtype, device=self._device)
            mask_B1TT.masked_fill_(~micro.mask_B1TT, torch.finfo(self._compute_dtype).min)
            hidden_BTH = self._body(
                input_ids=micro.input_ids_BT,
                attention_mask=mask_B1TT,
                position_ids=micro.positions_BT,
                use_cache=False,
            ).last_hidden_state
            logits_UV = self._head(hidden_BTH.flatten(0, 1)[micro.sources_U])
        logprobs_UV = torch.log_softmax(logits_UV.float() / self._settings.temperature, dim=-1)
        return logprobs_UV[micro.pick_K, micro.targets_K]

    def _accumulate(self, micro: MicroBatch, batch: TrainingBatch, figures: StepFigures, num_step_tokens: int) -> None:
        tokens_K = micro.tokens_K.cpu()
        engine_K = batch.engine_logprobs_N[tokens_K].to(self._device)
        advantages_K = batch.advantages_N[tokens_K].to(self._device)
        logprobs_K = self._forward(micro)
        cap = self._settings.importance_cap
        loss = policy_loss(logprobs_K, engine_K, advantages_K, importance_cap=cap, num_step_tokens=num_step_tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        ratios_K = importance_ratios(logprobs_K, engine_K)
        gap, gap_tokens = logprob_gap(logprobs_K, engine_K, batch.is_current_N[tokens_K].to(self._device))
        figures.gaps[-1][tokens_K] = (logprobs_K.detach().float() - engine_K).abs().cpu()
        figures.loss += float(loss.detach())
        figures.importance_ratio += float(ratios_K.sum())
        figures.truncated_fraction += float((ratios_K > cap).sum())
        figures.gap_sum += gap
        figures.gap_tokens += gap_tokens

    def _clip(self) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._settings.max_grad_norm, foreach=True))

    def weights(self) -> dict[str, Tensor]:
        """The live float32 weights under the names of the model's own safetensors. Not a copy: read before the next step."""
        return dict(self._stored())

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        """All that the model holds, tied tensors once, as transformers stores them."""
        seen: set[int] = set()
        for name, tensor in self._model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                yield name, tensor.detach()

    def optimizer_state(self) -> dict[str, Tensor]:
        """``<kind>.<parameter>`` for each of STATE_KINDS, and the random generators' states. Live, like ``weights``."""
        state: dict[str, Tensor] = {"rng.cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["rng.cuda"] = torch.cuda.get_rng_state(self._device)
        for name, parameter in self._parameters.items():
            for kind, tensor in self._optimizer.state.get(parameter, {}).items():
                state[f"{kind}.{name}"] = tensor
        return state

    def restore(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> None:
        """Go on exactly where these were taken. Raises BadInput when they are another model's."""
        ours = self.weights()
        if missing := sorted(set(ours) ^ set(weights)):
            raise BadInput(f"the checkpoint is of another model: weights {', '.join(missing[:5])} are on one side only")
        if odd := sorted(name for name, tensor in ours.items() if tensor.shape != weights[name].shape):
            shapes = f"{list(weights[odd[0]].shape)} there and {list(ours[odd[0]].shape)} here"
            raise BadInput(f"the checkpoint is of another model: {odd[0]} is {shapes}")
        with torch.no_grad():
            for name, tensor in ours.items():
                tensor.copy_(weights[name])
        for name, parameter in self._parameters.items():
            kept = {kind: optimizer_state[f"{kind}.{name}"] for kind in STATE_KINDS if f"{kind}.{name}" in optimizer_state}
            if kept:
                self._optimizer.state[parameter] = {k: t.clone().to(parameter.device) for k, t in kept.items()}
        torch.set_rng_state(optimizer_state["rng.cpu"].clone())
        if "rng.cuda" in optimizer_state and self._device.type == "cuda":
            torch.cuda.set_rng_state(optimizer_state["rng.cuda"].clone(), self._device)


FINAL_SHARE = 0.1
"""Share of the peak rate that is left at the last step of a linear decay."""


def learning_rate_at(step: int, settings: AlgorithmSection) -> float:
    """The rate of step ``step`` (from 1): linear to the peak at ``warmup_steps``, then constant or falling to FINAL_SHARE."""
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.decay == "none":
        return peak
    progress = (step - warmup) / max(1, settings.steps - warmup)
    return peak * (1.0 - (1.0 - FINAL_SHARE) * min(1.0, progress))


def _require_finite(figures: StepFigures) -> None:
    if not (torch.tensor([figures.loss, figures.grad_norm]).isfinite().all()):
        raise NotFinite(
            f"expected a finite loss and gradient, got loss {figures.loss} and norm {figures.grad_norm}; the step was not "
            "taken. Look at the rewards of this batch's verifiers, then at learning_rate and importance_cap"
        )
