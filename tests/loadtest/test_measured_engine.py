"""What benchmarks of workers note: moments of one engine, in an order that makes sense, and figures made of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("torch")

from loadtest import engine_figures
from loadtest.cpu_seconds import cpu_seconds, is_known
from loadtest.engine_figures import Turn
from loadtest.measured_engine import MeasuredEngine
from loadtest.weights_updates import Updates, figures_of, interval_of
from seamlessflow_rollout_worker.engines.base import PrefixUse, SamplingParams
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine

VOCABULARY = 8


async def test_what_an_engine_knows_of_its_cache_is_passed_on():
    """A worker takes as many episodes as it would without somebody who notes."""
    engine = ScriptedEngine(vocab_size=VOCABULARY, seed=0, seconds_per_token=0.001, num_slots=2)
    assert MeasuredEngine(engine).cache_tokens is None and MeasuredEngine(engine).prefix_use is None

    engine.cache_tokens, engine.prefix_use = 77, PrefixUse(3, 1)  # type: ignore[attr-defined]
    assert MeasuredEngine(engine).cache_tokens == 77 and MeasuredEngine(engine).prefix_use == PrefixUse(3, 1)


async def test_a_pause_is_noted_with_the_tokens_around_it_and_told_once(tmp_path: Path):
    """Asked, paused, loaded, resumed, the first token after: each not before the one before; the last token before the load."""
    file = tmp_path / "model.safetensors"
    save_file({"logits": np.zeros((VOCABULARY, VOCABULARY))}, file)
    engine = MeasuredEngine(ScriptedEngine(vocab_size=VOCABULARY, seed=0, seconds_per_token=0.001, num_slots=2))
    await engine.start(tmp_path, weights_version=1)
    num_tokens = 0

    async def sample() -> None:
        nonlocal num_tokens
        async for chunk in engine.generate("c1.nonce", [1, 2], SamplingParams(1.0, 1.0, 40, (), 1)):
            num_tokens += len(chunk.token_ids)

    task = asyncio.create_task(sample())
    while num_tokens < 5:
        await asyncio.sleep(0)
    await engine.pause()
    await engine.load_weights(file, weights_version=2)
    await engine.resume()
    await task
    told = engine.told()
    await engine.pause()
    await engine.resume()
    [idle] = engine.told()["pauses"]
    await engine.stop()

    [pause] = told["pauses"]
    assert pause["asked"] <= pause["paused"] <= pause["loaded"] <= pause["resumed"] <= pause["first_after"]
    assert 0 < pause["last_before"] <= pause["loaded"] and pause["num_running"] == 1
    assert len(told["arrivals"]) <= 40 and told["ends"] == {"length": 1}
    called, first = told["calls"]["c1"]
    assert called <= first == told["arrivals"][0]
    assert engine.told() == {"pauses": [], "arrivals": [], "calls": {}, "ends": {}}
    json.dumps(told)
    assert idle["num_running"] == 0 and not idle["first_after"]


def test_figures_compare_each_update_with_the_floor_of_its_own_round():
    """Ratios are of pairs, so that other load on the machine hits both."""
    found = Updates(
        pauses=[0.2, 0.6], copies=[0.1, 0.2], loads=[0.2, 0.3], beside=[1.0, 1.0], full=[3.0, 3.0],
        deltas=[1.0, 1.0], publishing=[1.0], fetching=[1.0], floors=[2.0, 1.0], num_asked=10, num_whole=9,
    )  # fmt: skip
    figures = figures_of(found, "transformers")

    assert figures["pause_vs_copy"].runs == pytest.approx([2.0, 3.0]) and figures["pause_vs_copy"].met is False
    assert figures_of(found, "vllm")["pause_vs_copy"].runs == pytest.approx([1.0, 2.0])
    assert figures["publish_to_resumed_vs_floor"].runs == pytest.approx([1.5, 3.0])
    assert figures["generations_no_update_ended"].value == 0.9 and not figures["generations_no_update_ended"].met
    assert figures["pause_seconds"].goal == 0.25 and figures_of(found, "vllm")["pause_seconds"].goal == 0.7


def test_what_lies_between_two_tokens_anyway_is_told_by_deliveries_and_not_by_their_readers():
    """Eight generations hear of one pass within a moment: the pace is that of the passes."""
    arrivals = [0.07 * delivery + 0.0001 * reader for delivery in range(5) for reader in range(8)]

    assert interval_of(arrivals) == pytest.approx(0.07, abs=0.001)
    assert interval_of([]) == 0.0


def test_what_a_worker_adds_to_a_first_token_is_both_sides_of_its_engine():
    """Request by request, so that the median is of sums and not a sum of medians."""
    assert Turn(1.0, [], before=[1.0, 2.0], after=[10.0, 20.0]).around == [11.0, 22.0]


def test_what_is_added_to_a_first_token_is_what_the_bare_engine_does_not_need():
    """Our engine's own share is in it: a slow engine of ours must not look fast because little happens around it."""
    ours = [Turn(1.0, [first], before=[0.001], after=[0.002]) for first in (0.110, 0.230)]
    bare = [Turn(1.0, [first]) for first in (0.100, 0.200)]
    figures = engine_figures.figures_of({kind: {"ours": ours, "bare": bare} for kind in engine_figures.KINDS})

    assert figures["added_first_token_p50_ms"].runs == pytest.approx([10.0, 30.0])
    assert figures["added_first_token_p50_ms"].met is False
    assert figures["around_engine_first_token_p50_ms"].runs == pytest.approx([3.0, 3.0])
    assert figures["added_first_token_p50_ms_alone"].met is None


def test_processor_time_counts_a_process_and_what_it_started_but_not_what_is_left_out():
    """A child that computes for a while adds to its parent's; without it nothing is added."""
    if not is_known():
        pytest.skip("there is no /proc here")
    work = (
        "import time; began = time.process_time()\nwhile time.process_time() - began < 0.3: pass\nprint(1, flush=True); input()"
    )
    before = cpu_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert cpu_seconds(child.pid) >= 0.3
        assert cpu_seconds(os.getpid()) - before >= 0.25  # ticks of 10 ms
        assert cpu_seconds(os.getpid()) - cpu_seconds(os.getpid(), without=child.pid) >= 0.25
    finally:
        child.communicate(b"\n")
