"""Tokens per second of our engine loop, against transformers' continuous batching in the same run.

Both serve one model folder in one process and take turns: the same prompts, seeds and budgets, first one, then the
other. ``distinct``: every prompt is another one. ``shared``: eight requests to a prompt, as the members of a group are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from loadtest.report import Figure, arguments, publish
from seamlessflow.config.settings import Settings
from seamlessflow.models import make_tiny, resolve_model
from seamlessflow_rollout_worker.engines.base import Engine, SamplingParams
from seamlessflow_rollout_worker.engines.transformers.continuous_engine import ContinuousBatchingEngine
from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine

GROUP_SIZE = 8
PROMPT_TOKENS = 48
REFERENCE = "transformers continuous batching"
LOWEST_ID = 8
"""Below it are special tokens."""


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-calculator", help="a name or folder, as in a run file")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--tokens", type=int, default=48, help="sampled by each stream")
    parser.add_argument("--runs", type=int, default=5, help="of each case and engine; the median counts")
    options = parser.parse_args(argv)
    if options.quick:
        options.streams, options.tokens, options.runs = [2], 3, 1
    with tempfile.TemporaryDirectory() as scratch:
        quick_model = Path(scratch) / "model"
        folder = (
            make_tiny(quick_model, 0, warm_start_steps=1)
            if options.quick
            else resolve_model(options.model, Settings().model_cache)
        )
        figures = asyncio.run(_measure(folder, options))
    publish("engines", figures, options.results)


async def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Figure]:
    num_slots, context = max(options.streams), PROMPT_TOKENS + options.tokens
    engines: list[Engine] = [
        kind(dtype=options.dtype, num_slots=num_slots, max_context_tokens=context, seed=0)
        for kind in (TransformersEngine, ContinuousBatchingEngine)
    ]
    for engine in engines:
        await engine.start(folder, weights_version=0)
        await _tokens_per_second(engine, _prompts(2, 1), options.tokens)  # the first pass of a process is slow
    figures = {}
    for streams in options.streams:
        for kind, group_size in (("distinct", 1), ("shared", GROUP_SIZE)):
            if streams < group_size:
                continue
            runs: list[list[float]] = [[], []]
            for run in range(options.runs):
                for engine, speeds in zip(engines, runs, strict=True):
                    prompts = _prompts(streams, group_size, seed=run)
                    speeds.append(await _tokens_per_second(engine, prompts, options.tokens))
            ours, theirs = runs
            figures[f"engine_tokens_per_second_{streams}_{kind}"] = Figure("tok/s", "higher", ours, REFERENCE, theirs)
    for engine in engines:
        await engine.stop()
    return figures


def _prompts(num_streams: int, group_size: int, *, seed: int = 0) -> list[list[int]]:
    """Random ids: what they mean makes no difference to the time they take."""
    stream, vocabulary = random.Random(seed), range(LOWEST_ID, 60)
    return [
        prompt
        for _ in range(0, num_streams, group_size)
        for prompt in [stream.choices(vocabulary, k=PROMPT_TOKENS)] * group_size
    ][:num_streams]


async def _tokens_per_second(engine: Engine, prompts: list[list[int]], num_tokens: int) -> float:
    """All at once, to the last token of the last one, prefill included."""

    async def sample(index: int, prompt: list[int]) -> int:
        params = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=num_tokens, stop_token_ids=(), seed=index)
        return sum([len(chunk.token_ids) async for chunk in engine.generate(f"r{index}", prompt, params)])

    began = time.perf_counter()
    sampled = sum(await asyncio.gather(*(sample(i, prompt) for i, prompt in enumerate(prompts))))
    assert sampled == num_tokens * len(prompts), "an engine ended a request early"
    return sampled / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
