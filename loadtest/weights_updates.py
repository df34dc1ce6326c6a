"""What an update of the weights costs those who sample: the parts of ``loadtest.weights`` with real workers and a real server.

    trainer's publisher (here) ──store, journal, head──▶ two rollout-workers, each a process: fetch, stage, pause, load, resume

Pause: one worker samples all the time. What sampling saw is the gap between its last token before the pause and its first one
after it, less what lies between two tokens anyway; never less than the time from paused to resumed. The floor is a plain copy
of as many bytes, tensor by tensor, with as many threads, while that worker stands still; for vllm, which keeps weights packed
for its kernels and cannot have them copied, its own load while nothing is sampled.

Arrival: nobody samples. From before the publisher begins until the server has the last worker's WeightsLoaded, by the wall
clock of this machine. The floor: the bytes written to a file and read back by as many readers at once as there are workers, on
the disk that store and workers use, and the copy, by all at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.gateway_child import Child
from loadtest.measured_engine import NOT_CUT
from loadtest.report import Figure
from loadtest.run_rig import RUN, TAG, Request, RunRig, open_rig
from loadtest.weights_floors import Copies, disk_seconds
from seamlessflow.contracts import Service, WeightsLoaded
from seamlessflow.contracts.streams import generation_consumer, journal_stream, queue_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow_trainer.weights.publisher import WeightsPublisher

NUM_WORKERS = 2
PROMPT_TOKENS = 32
LOWEST_ID, HIGHEST_ID = 8, 60
CONTEXT_TOKENS = 512
LEARNING_RATE = 1e-5
PACKED = ("vllm",)
"""Engines that weights cannot be copied into as they are."""
PAUSE_GOALS = {"vllm": 0.7}
PAUSE_GOAL = 0.25
"""Seconds."""
SETTLE_SECONDS = 1.0
"""Of sampling before an update, from which its ordinary pace is known."""
LOADED_SECONDS = 120.0
POLL_SECONDS = 0.02
ONE_DELIVERY_SECONDS = 0.005


@dataclass(slots=True)
class Updates:
    """A number for each update."""

    pauses: list[float] = field(default_factory=list)
    """Seconds, as sampling saw them."""
    copies: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Seconds that an engine takes to load while nothing is sampled."""
    beside: list[float] = field(default_factory=list)
    """Seconds from publishing to the pause: fetched and read while sampling went on."""
    full: list[float] = field(default_factory=list)
    """Seconds from publishing to all resumed."""
    deltas: list[float] = field(default_factory=list)
    publishing: list[float] = field(default_factory=list)
    fetching: list[float] = field(default_factory=list)
    """Of ``full``: the publisher's part, and what the slower worker took to have a checked file."""
    floors: list[float] = field(default_factory=list)
    num_asked: int = 0
    num_whole: int = 0
    """Generations, and those that no update ended."""

    def count(self, *ends: Mapping[str, int]) -> None:
        """Generations that ended, by how."""
        self.num_asked += sum(sum(each.values()) for each in ends)
        self.num_whole += sum(each.get(end, 0) for each in ends for end in NOT_CUT)


@dataclass(slots=True)
class Arrival:
    """Where the seconds of one went."""

    publishing: float = 0.0
    fetching: float = 0.0


async def measure(model: Path, folder: Path, *, engine: str, num_updates: int, streams: int) -> Updates:
    """Start everything, update ``num_updates`` times each way, end everything."""
    found = Updates()
    async with open_rig(folder, model, engine=engine, slots=streams, context=CONTEXT_TOKENS) as rig:
        sampler = await rig.start_worker("node-0")
        await _measure_pauses(rig, sampler, found, num_updates, streams)
        await rig.start_worker("node-1", owns=False)
        await _measure_arrivals(rig, found, num_updates)
        rig.check()
    return found


def figures_of(found: Updates, engine: str) -> dict[str, Figure]:
    copy, floor = "a plain copy in place", "written once, read by each worker, copied"
    alone_words, alones = ("its load alone", found.loads) if engine in PACKED else (copy, found.copies)
    relative = [pause / alone for pause, alone in zip(found.pauses, alones, strict=True)]
    arrival = [full / least for full, least in zip(found.full, found.floors, strict=True)]
    delta = [seconds / least for seconds, least in zip(found.deltas, found.floors, strict=True)]
    kept = [found.num_whole / found.num_asked]
    return {
        "pause_vs_copy": Figure("times", "lower", relative, alone_words, [1.0], 1.5),
        "pause_seconds": Figure("s", "lower", found.pauses, copy, found.copies, PAUSE_GOALS.get(engine, PAUSE_GOAL)),
        "load_alone_seconds": Figure("s", "lower", found.loads, copy, found.copies),
        "fetched_beside_sampling_seconds": Figure("s", "lower", found.beside, "the pause that followed", found.pauses),
        "generations_no_update_ended": Figure("of all", "higher", kept, "all", [1.0], 1.0),
        "publish_to_resumed_vs_floor": Figure("times", "lower", arrival, floor, [1.0], 1.5),
        "publish_to_resumed_seconds": Figure("s", "lower", found.full, floor, found.floors),
        "of_which_publishing_seconds": Figure("s", "lower", found.publishing, "of publish_to_resumed_seconds", found.full),
        "of_which_fetching_seconds": Figure("s", "lower", found.fetching, "of publish_to_resumed_seconds", found.full),
        "publish_to_resumed_vs_floor_as_changes": Figure("times", "lower", delta, floor + ", in full", [1.0]),
        "publish_to_resumed_seconds_as_changes": Figure("s", "lower", found.deltas, floor + ", in full", found.floors),
    }


async def _measure_pauses(rig: RunRig, sampler: Child, found: Updates, num_updates: int, streams: int) -> None:
    publisher, feed = await rig.publisher(full_every=10), _Feed(rig, streams)
    feeding = asyncio.create_task(feed.run())
    try:
        for number in range(num_updates + 1):
            rig.learn(LEARNING_RATE, number)
            await asyncio.sleep(SETTLE_SECONDS)
            before = await sampler.told("so far")
            published_at = time.monotonic()
            await _loaded(rig, await rig.publish(publisher), 1)
            pause, told = await _pause(sampler)
            if number:  # the first one touches memory for the first time
                gap = pause["first_after"] - pause["last_before"] - interval_of(before["arrivals"])
                found.pauses.append(max(gap, pause["resumed"] - pause["paused"]))
                found.beside.append(pause["asked"] - published_at)
            found.count(before["ends"], told["ends"])
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    await feed.drained()
    found.count((await sampler.told("the rest"))["ends"])
    for number in range(num_updates):
        rig.learn(LEARNING_RATE, 100 + number)
        await _loaded(rig, await rig.publish(publisher), 1)
        pause, _ = await _pause(sampler)
        found.loads.append(pause["loaded"] - pause["paused"])
    copies = Copies(rig, 1)
    for number in range(num_updates + 1):
        seconds = await asyncio.to_thread(copies.seconds)
        if number:
            found.copies.append(seconds)


def interval_of(arrivals: Sequence[float]) -> float:
    """Seconds from one delivery of tokens to the next, as a rule. Those of one delivery reach their readers one by one."""
    moments = sorted(arrivals)
    apart = [after - before for before, after in pairwise(moments) if after - before > ONE_DELIVERY_SECONDS]
    return median(apart) if apart else 0.0


async def _pause(sampler: Child) -> tuple[dict[str, float], dict[str, Any]]:
    """What the worker noted of the update just loaded, once a token came after it; and all that it told then."""
    async with asyncio.timeout(LOADED_SECONDS):
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            if (told := await sampler.told("the pause"))["pauses"]:
                return told["pauses"][-1], told


async def _measure_arrivals(rig: RunRig, found: Updates, num_updates: int) -> None:
    """Full versions, changes and the floor take turns."""
    copies = Copies(rig, NUM_WORKERS)
    for number in range(num_updates + 1):
        rig.learn(LEARNING_RATE, 1000 + number)
        changes = await rig.publisher(full_every=1000)
        await _arrival(rig, changes, Arrival())  # full: the first of a publisher's
        rig.learn(LEARNING_RATE, 2000 + number)
        delta = await _arrival(rig, changes, Arrival())
        rig.learn(LEARNING_RATE, 3000 + number)
        whole = await rig.publisher(full_every=1)
        parts = Arrival()
        full = await _arrival(rig, whole, parts)
        floor = await asyncio.to_thread(disk_seconds, rig, NUM_WORKERS) + await asyncio.to_thread(copies.seconds)
        if number:
            found.deltas.append(delta)
            found.full.append(full)
            found.publishing.append(parts.publishing)
            found.fetching.append(parts.fetching)
            found.floors.append(floor)
        await whole.collect()


async def _arrival(rig: RunRig, publisher: WeightsPublisher, parts: Arrival) -> float:
    """Seconds from before publishing until all workers have resumed and said so."""
    began = time.time()
    version = await rig.publish(publisher)
    parts.publishing = time.time() - began
    ended = await _loaded(rig, version, NUM_WORKERS)
    parts.fetching = max(each.fetch_seconds for each in await _said(rig, version))
    return ended - began


async def _said(rig: RunRig, version: int) -> list[WeightsLoaded]:
    events = await rig.journal.all_on(WeightsLoaded, RUN, weights_version=version)
    return [event for event in events if isinstance(event, WeightsLoaded)]


async def _loaded(rig: RunRig, version: int, num_workers: int) -> float:
    """When the server had the last of so many WeightsLoaded of a version, Unix seconds."""
    pattern = subject_filter(WeightsLoaded, run=RUN, weights_version=version)
    async with asyncio.timeout(LOADED_SECONDS):
        while True:
            times = [record.time async for record in rig.bus.read(journal_stream(RUN), filters=(pattern,))]
            if len(times) >= num_workers:
                return max(times)
            rig.check()
            await asyncio.sleep(POLL_SECONDS)


class _Feed:
    """Keeps one worker busy: so many generations at a time, each as long as the context allows."""

    def __init__(self, rig: RunRig, streams: int) -> None:
        self._rig, self._streams = rig, streams
        self._random = random.Random(0)
        self._asked = 0

    async def run(self) -> None:
        while True:
            if await self._num_open() < self._streams:
                await self._rig.ask(self._next(), seed=self._asked)
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def drained(self) -> None:
        """Wait until the last one has ended."""
        async with asyncio.timeout(LOADED_SECONDS):
            while await self._num_open():  # noqa: ASYNC110 - a queue tells nobody when it is empty
                await asyncio.sleep(10 * POLL_SECONDS)

    async def _num_open(self) -> int:
        queue = queue_stream(Service.ROLLOUT_WORKER, RUN)
        return await self._rig.bus.pending(queue, generation_consumer((TAG,), TAG, 0))

    def _next(self) -> Request:
        self._asked += 1
        prompt = self._random.choices(range(LOWEST_ID, HIGHEST_ID), k=PROMPT_TOKENS)
        # Of different lengths, so that they do not all end and begin together.
        most = CONTEXT_TOKENS - PROMPT_TOKENS
        return Request(f"c{self._asked}", prompt, self._random.randrange(most // 4, most // 2), stream=True)
