"""What a rollout-worker adds to its engine: tokens a second and first tokens, through JetStream and without it.

    ours   requests published here ──journal, queue──▶ rollout-worker (a process) ──segments, journal, queue──▶ taken here
    bare   the same requests in a process that holds the same engine and nothing else; vllm: ``AsyncLLM`` itself

Both are there all the time and take turns, so many requests in flight, each as long as its budget. Tokens a second are over a
whole series. What is added to the first token of a streamed request is ours, from publishing it until that token is here,
minus the bare engine's in the same round. Apart from that: the time around our engine, from publishing until it was asked, and
from its first token until that was here; moments are of one clock that all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.cpu_seconds import cpu_seconds
from loadtest.engine_figures import KINDS, Turn, figures_of
from loadtest.gateway_child import Child
from loadtest.report import Figure, arguments, publish
from loadtest.run_rig import RUN, Request, RunRig, interpreter_environment, open_rig
from seamlessflow.bus.base import Delivery, Subscription
from seamlessflow.codec import decode
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import GenerationEnded, SegmentSampled, Service
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.local.services import interpreter_of
from seamlessflow.models import make_tiny, resolve_model

KEYS = (
    "added_first_token_p50_ms: ours minus the bare engine's, all that we add. around_engine_first_token_p50_ms: only what lies "
    "before and after our engine (before_engine_..., after_engine_...: its parts). ..._alone: one request at a time. "
    "tokens_per_s_share_of_bare: of series that nobody reads along."
)
"""The end of ``--help``."""
LOWEST_ID, HIGHEST_ID = 8, 60
NODE = "node-0"
CREDIT = 1024
BARE_READY_SECONDS = 300.0


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.epilog = KEYS
    parser.add_argument("--engine", default="transformers", help="transformers, continuous_batching or vllm")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or folder, as in a run file")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96, help="of a series")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=48, help="sampled by a request: from half of it to one and a half")
    parser.add_argument("--runs", type=int, default=5, help="series of each side; the median counts")
    options = parser.parse_args(argv)
    if options.quick:
        options.in_flight, options.requests, options.prompt, options.tokens, options.runs = 2, 4, 6, 4, 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = make_tiny(folder / "model", 0, warm_start_steps=1) if options.quick else None
        model = model or resolve_model(options.model, Settings().model_cache)
        figures = asyncio.run(_measure(model, folder, options))
    publish("engine", figures, options.results)


async def _measure(model: Path, folder: Path, options: argparse.Namespace) -> dict[str, Figure]:
    context = options.prompt + 2 * options.tokens
    more = {"engine": options.engine, "slots": options.in_flight, "context": context, "dtype": options.dtype}
    async with open_rig(folder, model, **more) as rig:
        await rig.start_worker(NODE)
        watch, bare = _Watch(rig), await _start_bare(rig)
        listening = await watch.open()
        try:
            sides: dict[str, dict[str, list[Turn]]] = {name: {"ours": [], "bare": []} for name in KINDS}
            for run in range(options.runs + 1):
                for name, turns in sides.items():
                    # Whoever is first in one round is second in the next.
                    for side in ("ours", "bare") if run % 2 else ("bare", "ours"):
                        requests, in_flight = _requests(options, name, run), 1 if name == "alone" else options.in_flight
                        took = partial(_processor_seconds, bare, side)
                        began = took()
                        turn = await (
                            _ours(rig, watch, requests, in_flight) if side == "ours" else _bare(bare, requests, in_flight)
                        )
                        turn.cpu_per_token = (took() - began) / sum(each.max_tokens for each in requests)
                        if run:  # the first pass of a process is slow
                            turns[side].append(turn)
        finally:
            await listening.leave()
            await bare.stop()
    return figures_of(sides)


def _processor_seconds(bare: Child, side: str) -> float:
    """Of ours: all that this process started but the bare engine, and not itself; it only asks and reads."""
    if side == "bare":
        return cpu_seconds(bare.pid)
    return cpu_seconds(os.getpid(), without=bare.pid) - time.process_time()


def _requests(options: argparse.Namespace, kind: str, run: int) -> list[Request]:
    """The same for both sides; other prompts in each round, so that no cache has them."""
    stream = random.Random(f"{kind} {run}")
    count = max(2, options.requests // 8) if kind == "alone" else options.requests
    return [
        Request(
            f"{kind}-{run}-{number}",
            stream.choices(range(LOWEST_ID, HIGHEST_ID), k=options.prompt),
            stream.randint(options.tokens // 2, 3 * options.tokens // 2),
            stream=kind != "plain",
        )
        for number in range(count)
    ]


async def _start_bare(rig: RunRig) -> Child:
    python = str(interpreter_of(rig.config.model.engine))
    environment = interpreter_environment()
    bare = await Child.start([python, "-m", "loadtest.bare_engine"], environment, rig.folder / "bare.log")
    async with asyncio.timeout(BARE_READY_SECONDS):
        await bare.told(rig.config.model_dump(mode="json", exclude_none=True))
    return bare


async def _bare(bare: Child, requests: Sequence[Request], in_flight: int) -> Turn:
    told: dict[str, Any] = await bare.told({"requests": [asdict(each) for each in requests], "in_flight": in_flight})
    assert told["tokens"] == sum(each.max_tokens for each in requests), "the bare engine ended a request early"
    return Turn(told["tokens"] / told["seconds"], told["firsts"])


async def _ours(rig: RunRig, watch: _Watch, requests: Sequence[Request], in_flight: int) -> Turn:
    room, before = asyncio.Semaphore(in_flight), watch.num_tokens
    began = time.monotonic()

    async def one(request: Request) -> float:
        async with room:
            asked = time.monotonic()
            await rig.ask(request)
            await watch.ended(request.name)
            return asked

    asked = await asyncio.gather(*map(one, requests))
    seconds, num_tokens = time.monotonic() - began, watch.num_tokens - before
    rig.check()
    assert num_tokens == sum(each.max_tokens for each in requests), "the worker ended a request early"
    calls = (await rig.workers[NODE].told("calls"))["calls"]
    turn = Turn(num_tokens / seconds, [])
    for request, published in zip(requests, asked, strict=True):
        called, first = calls[request.name]
        turn.firsts.append(watch.firsts[request.name] - published)
        turn.before.append(called - published)
        turn.after.append(watch.firsts[request.name] - first)
    return turn


class _Watch:
    """Takes segments from the trajectory-manager's queue, as that service does."""

    def __init__(self, rig: RunRig) -> None:
        self.firsts: dict[str, float] = {}
        """By generation: when its first token was here."""
        self.num_tokens = 0
        self._rig = rig
        self._ends: dict[str, asyncio.Event] = {}

    async def open(self) -> Subscription:
        """Listen from now on."""
        queue, name = queue_stream(Service.TRAJECTORY_MANAGER, RUN), consumer_name(Service.TRAJECTORY_MANAGER, "0")
        return await self._rig.bus.consume(queue, name, self._on_delivery, credit=CREDIT)

    async def ended(self, generation: str) -> None:
        await self._ends.setdefault(generation, asyncio.Event()).wait()

    async def _on_delivery(self, delivery: Delivery) -> None:
        arrived, store = time.monotonic(), self._rig.store
        payload = await store.attach(delivery.payload, dict(delivery.headers))
        event = decode(delivery.subject, payload, delivery.headers)
        if isinstance(event, SegmentSampled):
            self.firsts.setdefault(event.generation, arrived)
            self.num_tokens += len(event.token_ids)
        if isinstance(event, GenerationEnded) or (isinstance(event, SegmentSampled) and event.finish is not None):
            self._ends.setdefault(event.generation, asyncio.Event()).set()
        await delivery.ack()


if __name__ == "__main__":
    main()
