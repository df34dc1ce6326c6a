"""``python -m seamlessflow_trainer.engine_check ORDER REPORT``: an optimiser step at learning rate 0 on what an engine sampled.

The learner of training itself, packing and precision included, on tokens as if they had come from a run: so what is measured
here is what StepTaken calls ``logprob_gap``. Both files are JSON (seamlessflow.engine_check).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.engine_check import GapFigures, Sampled, TrainerOrder, TrainerReport, report_on_order

from .config import TrainerSettings
from .data.batch import TrainingBatch
from .data.packing import Path as TokenPath
from .learner.learner import Learner
from .learner.model_loading import load_learner, pick_device


def run(order: TrainerOrder) -> TrainerReport:
    """Blocks. Raises BadInput for a model that cannot be trained."""
    config = parse_run_config(order.document)
    hot, greedy = (_at(config, temperature) for temperature in (order.temperature, 1.0))
    learner = _learner(order.base, hot)
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    drawn = _step(learner, order.drawn)
    changed = [name for name, tensor in learner.weights().items() if not torch.equal(tensor, before[name])]
    del learner
    learner = _learner(order.base, greedy)
    of_base, stale = _step(learner, order.greedy), _step(learner, order.greedy_of_other)
    del learner
    learner = _learner(order.other, greedy)
    return TrainerReport(
        drawn=drawn,
        greedy=of_base,
        greedy_of_other=_step(learner, order.greedy_of_other),
        stale=stale,
        num_tensors=len(before),
        num_changed=len(changed),
        dtype=str(learner.compute_dtype).removeprefix("torch."),
    )


def _at(config: RunConfig, temperature: float) -> RunConfig:
    return config.model_copy(update={"sampling": config.sampling.model_copy(update={"temperature": temperature})})


def _learner(folder: Path, config: RunConfig) -> Learner:
    return load_learner(folder, config, pick_device(TrainerSettings().device))


def _step(learner: Learner, samples: Sequence[Sampled]) -> GapFigures:
    """One step at learning rate 0 on all of them, each a group of its own, every other one with a positive advantage.

    No step is taken on logprobs that are no numbers: their gap is none, either.
    """
    if not all(math.isfinite(logprob) for each in samples for logprob in each.logprobs):
        return GapFigures(mean=math.nan, largest=math.nan, num_tokens=sum(len(each.tokens) for each in samples))
    figures = learner.train(batch_of(samples), learning_rate=0.0)
    gaps_N = torch.cat(figures.gaps)
    return GapFigures(mean=float(gaps_N.double().mean()), largest=float(gaps_N.max()), num_tokens=len(gaps_N))


def batch_of(samples: Sequence[Sampled]) -> TrainingBatch:
    """What an engine sampled, as a step's worth of groups."""
    counts = [len(each.tokens) for each in samples]
    paths = [
        TokenPath([*each.prompt, *each.tokens], range(len(each.prompt), len(each.prompt) + count), first)
        for each, count, first in zip(samples, counts, accumulate([0, *counts]), strict=False)
    ]
    signs = torch.tensor([1.0 if number % 2 else -1.0 for number in range(len(samples))])
    return TrainingBatch(
        groups=(),
        paths=tuple((path,) for path in paths),
        engine_logprobs_N=torch.tensor([logprob for each in samples for logprob in each.logprobs]),
        advantages_N=signs.repeat_interleave(torch.tensor(counts)),
        is_current_N=torch.ones(sum(counts), dtype=torch.bool),
        episodes=(),
        ages={},
    )


def main(arguments: Sequence[str]) -> int:
    return report_on_order(arguments, TrainerOrder, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
