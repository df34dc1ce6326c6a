"""One optimiser step over groups packed as prefix trees, against the same samples one by one, in the same run.

Packed rows compute a group's prompt once (seamlessflow_trainer.data.packing); flat ones, what most trainers do, once for each
sample. Both give the same gradient, and this checks that they do.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from loadtest.report import Figure, arguments, publish
from seamlessflow.config.settings import Settings
from seamlessflow.models import make_tiny, resolve_model
from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.data.packing import Path
from seamlessflow_trainer.learner.learner import Hyperparameters, Learner
from seamlessflow_trainer.learner.model_loading import pick_compute_dtype

MICRO_BATCH_TOKENS = 4096
LOGPROB = -2.0
"""As if an engine had sampled so; it moves the gradient of both ways alike."""
LARGEST_GAP = 0.05
"""Relative difference of gradient norms; bfloat16 rounds to about a hundredth."""
REFERENCE = "one row for each sample"


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-calculator", help="a name or folder, as in a run file")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="served; bfloat16: autocast")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--members", type=int, default=8, help="of each group")
    parser.add_argument("--prompts", type=int, nargs="+", default=[48, 192], help="tokens of a group's prompt")
    parser.add_argument("--answer", type=int, default=24, help="tokens of an answer")
    parser.add_argument("--runs", type=int, default=3, help="of each case; the median counts")
    options = parser.parse_args(argv)
    if options.quick:
        options.groups, options.members, options.prompts, options.answer, options.runs = 1, 2, [6], 3, 1
    with tempfile.TemporaryDirectory() as scratch:
        quick_model = FilePath(scratch) / "model"
        folder = (
            make_tiny(quick_model, 0, warm_start_steps=1)
            if options.quick
            else resolve_model(options.model, Settings().model_cache)
        )
        figures = _measure(learner_of(folder, options.dtype), options)
    publish("packing", figures, options.results)


def learner_of(folder: FilePath, dtype: str) -> Learner:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    settings = Hyperparameters(
        temperature=1.0, weight_decay=0.0, max_grad_norm=1.0, importance_cap=2.0, micro_batch_tokens=MICRO_BATCH_TOKENS
    )
    return Learner(model, settings, compute_dtype=pick_compute_dtype(torch.device("cpu"), getattr(torch, dtype)))


def _measure(learner: Learner, options: argparse.Namespace) -> dict[str, Figure]:
    figures = {}
    for prompt_tokens in options.prompts:
        packed = batch_of_random_tokens(options.groups, options.members, prompt_tokens, options.answer)
        flat = replace(packed, paths=tuple((path,) for group in packed.paths for path in group))
        runs: list[list[float]] = [[], []]
        for batch in (packed, flat):  # the first step of a shape is slow
            learner.train(batch, learning_rate=0.0)
        for _ in range(options.runs):
            norms = []
            for batch, seconds in zip((packed, flat), runs, strict=True):
                began = time.perf_counter()
                norms.append(learner.train(batch, learning_rate=0.0).grad_norm)
                seconds.append(time.perf_counter() - began)
            assert abs(norms[0] - norms[1]) <= LARGEST_GAP * norms[1], f"packed and flat gradients differ: {norms}"
        figures[f"train_step_seconds_prompt_{prompt_tokens}"] = Figure("s", "lower", runs[0], REFERENCE, runs[1])
    return figures


def batch_of_random_tokens(
    num_groups: int, num_members: int, prompt_tokens: int, answer_tokens: int, *, seed: int = 0
) -> TrainingBatch:
    """Groups of random ids that share their prompts; half of each group did well."""
    stream = random.Random(seed)
    groups: list[tuple[Path, ...]] = []
    for group in range(num_groups):
        prompt = stream.choices(range(8, 60), k=prompt_tokens)
        members = []
        for member in range(num_members):
            answer = stream.choices(range(8, 60), k=answer_tokens)
            first = (group * num_members + member) * answer_tokens
            members.append(Path(prompt + answer, range(prompt_tokens, prompt_tokens + answer_tokens), first))
        groups.append(tuple(members))
    num_trained = num_groups * num_members * answer_tokens
    signs = torch.tensor([1.0 if member % 2 else -1.0 for member in range(num_groups * num_members)])
    return TrainingBatch(
        groups=(),
        paths=tuple(groups),
        engine_logprobs_N=torch.full((num_trained,), LOGPROB),
        advantages_N=signs.repeat_interleave(answer_tokens),
        is_current_N=torch.ones(num_trained, dtype=torch.bool),
        episodes=(),
        ages={},
    )


if __name__ == "__main__":
    main()
