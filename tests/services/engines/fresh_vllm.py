"""``python -m tests.services.engines.fresh_vllm FOLDER PROMPTS``: a vLLM engine never updated, in a process to be killed.

Prints [[ids, logprobs], ...] of each prompt's greedy continuation as one line of JSON, and then waits.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from services.rollout_worker.engines.vllm import VllmEngine
from tests.services.engines.conftest import sample


async def main(folder: Path, prompts: list[list[int]]) -> None:
    engine = VllmEngine(dtype="bfloat16", num_slots=4, max_context_tokens=512, num_threads=2)
    await engine.start(folder, weights_version=1)
    answers = [await sample(engine, prompt, max_tokens=16, temperature=0.0) for prompt in prompts]
    print(json.dumps([[answer.ids, answer.logprobs] for answer in answers]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
