"""``python -m loadtest.bare_engine``: an engine without a worker around it, for what a worker costs.

Standard input's first line is a run document with the model's folder; then one line for each series of requests: it says how
long they took and when each first token came. vllm: ``AsyncLLM`` itself, with its own sampling; of the others, ours.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from loadtest.gateway_child import lines_told, reply
from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.factory import build_engine

Sample = Callable[[dict[str, Any]], AsyncIterator[int]]
"""A request as JSON, into the counts of tokens as they come."""


async def main() -> None:
    lines = await lines_told()
    config = parse_run_config(json.loads(await lines.readline()))
    if config.model.engine == "vllm":
        from loadtest.bare_vllm import start_vllm

        sample, stop = await start_vllm(config)
    else:
        sample, stop = await _start_ours(config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lines.feed_eof)
    reply("ready")
    try:
        while line := await lines.readline():
            reply(await _series(sample, **json.loads(line)))
    finally:
        await stop()


async def _series(sample: Sample, requests: list[dict[str, Any]], in_flight: int) -> dict[str, Any]:
    """All of them, so many at a time: seconds, tokens, and seconds from asking to the first token of each."""
    room, firsts, num_tokens = asyncio.Semaphore(in_flight), list[float](), 0

    async def one(request: dict[str, Any]) -> None:
        nonlocal num_tokens
        async with room:
            asked, first = time.monotonic(), 0.0
            async with aclosing(sample(request)) as counts:  # type: ignore[type-var] # both are generators
                async for count in counts:
                    first = first or time.monotonic()
                    num_tokens += count
            firsts.append(first - asked)

    began = time.monotonic()
    await asyncio.gather(*map(one, requests))
    return {"seconds": time.monotonic() - began, "tokens": num_tokens, "firsts": firsts}


async def _start_ours(config: RunConfig) -> tuple[Sample, Callable[[], Any]]:
    folder = Path(config.model.name)
    engine = build_engine(config, WorkerSettings(), folder)
    await engine.start(folder, weights_version=0)
    number = 0

    async def sample(request: dict[str, Any]) -> AsyncIterator[int]:
        nonlocal number
        number += 1
        params = SamplingParams(1.0, 1.0, request["max_tokens"], (), number, request["stream"])
        async for chunk in engine.generate(f"r{number}", request["prompt"], params):
            if chunk.token_ids:
                yield len(chunk.token_ids)

    return sample, engine.stop


if __name__ == "__main__":
    import uvloop

    sys.exit(uvloop.run(main()))
