"""What only the engine on transformers' continuous batching can get wrong: its manager's thread, its silences, its weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError, Finish
from tests.services.engines.conftest import CONTEXT, FIRST_VERSION, PROMPT, broken_weights, joined, params, sample

torch = pytest.importorskip("torch")

from seamlessflow_rollout_worker.engines.transformers import paged_manager  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.continuous_engine import ContinuousBatchingEngine  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine  # noqa: E402 - after the skip


@pytest.fixture
async def engine(tiny_llamas: list[Path]) -> AsyncIterator[ContinuousBatchingEngine]:
    made = ContinuousBatchingEngine(dtype="float32", num_slots=4, max_context_tokens=CONTEXT, num_threads=1)
    await made.start(tiny_llamas[0], weights_version=FIRST_VERSION)
    yield made
    await made.stop()


async def test_a_dead_manager_fails_every_request_and_call_instead_of_hanging(
    engine: ContinuousBatchingEngine, tiny_llamas: list[Path], tmp_path: Path
) -> None:
    """Weights that give no finite logits kill its thread; all who wait must hear of it, and a restart heals it."""
    await engine.pause()
    waiting = [asyncio.create_task(sample(engine, request_id=f"r{i}")) for i in range(8)]
    await asyncio.sleep(0)
    await engine.load_weights(broken_weights(tiny_llamas, tmp_path), weights_version=8)
    await engine.resume()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)

    assert [type(outcome) for outcome in outcomes] == [EngineError] * 8
    for call in (sample(engine), engine.pause(), engine.resume(), engine.load_weights(Path("any"), weights_version=9)):
        with pytest.raises(EngineError, match="not finite"):
            await call
    await engine.stop()
    await engine.start(tiny_llamas[0], weights_version=FIRST_VERSION)
    assert len((await sample(engine)).ids) == 12


async def test_it_draws_what_our_own_loop_draws(engine: ContinuousBatchingEngine, tiny_llamas: list[Path]) -> None:
    """Same weights, same seeds, same draws, by two schedulers and two kinds of cache: each checks the other."""
    ours = TransformersEngine(dtype="float32", num_slots=4, max_context_tokens=CONTEXT, num_threads=1)
    await ours.start(tiny_llamas[0], weights_version=FIRST_VERSION)
    for settings in ({"seed": 1}, {"seed": 2, "temperature": 0.7}, {"seed": 3, "top_p": 0.6}, {"temperature": 0.0}):
        theirs, own = [await sample(each, max_tokens=60, **settings) for each in (engine, ours)]
        assert theirs.ids == own.ids
        assert theirs.logprobs == pytest.approx(own.logprobs, abs=2e-5)
    await ours.stop()


async def test_prompts_that_do_not_fit_into_one_pass_are_sampled_exactly(
    tiny_llamas: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass then ends in the middle of a prompt, and has a row of logits that is nobody's."""
    monkeypatch.setattr(paged_manager, "MAX_BATCH_TOKENS", 7)
    narrow = ContinuousBatchingEngine(dtype="float32", num_slots=4, max_context_tokens=CONTEXT, num_threads=1)
    await narrow.start(tiny_llamas[0], weights_version=FIRST_VERSION)
    prompts = [PROMPT * (1 + index % 3) for index in range(6)]
    alone = [await sample(narrow, prompt, "alone", seed=index) for index, prompt in enumerate(prompts)]
    together = await asyncio.gather(*(sample(narrow, prompt, f"r{i}", seed=i) for i, prompt in enumerate(prompts)))
    await narrow.stop()

    assert [answer.ids for answer in together] == [answer.ids for answer in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)


async def test_an_engine_that_cannot_start_says_why(tiny_llamas: list[Path]) -> None:
    """A cache larger than the machine's memory is noticed in the manager's thread; start must not report success."""
    greedy = ContinuousBatchingEngine(dtype="float32", num_slots=10**9, max_context_tokens=CONTEXT, num_threads=1)
    with pytest.raises(EngineError, match="Memory"):
        await greedy.start(tiny_llamas[0], weights_version=FIRST_VERSION)
    with pytest.raises(EngineError, match="not running"):
        await greedy.pause()


async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """And nothing was left running."""
    engine = ContinuousBatchingEngine()
    with pytest.raises(BadInput, match=r"config\.json"):
        await engine.start(tmp_path, weights_version=1)
    with pytest.raises(EngineError, match="not running"):
        await engine.pause()


async def test_a_process_that_fails_before_stop_can_end(engine: ContinuousBatchingEngine) -> None:
    """The manager starts an ordinary thread, which would keep a dying service alive for ever; ours is a daemon."""
    thread = engine._alive().manager._generation_thread

    assert thread in threading.enumerate()
    assert thread.daemon


async def test_a_paused_engine_stops(engine: ContinuousBatchingEngine) -> None:
    """The manager alone would wait for its own pause for ever. What was sampled before is reported."""
    stream = engine.generate("r", PROMPT, params(max_tokens=100))
    first = await anext(stream)
    await engine.pause()
    await asyncio.wait_for(engine.stop(), 10)
    answer = joined([first] + [chunk async for chunk in stream])

    assert answer.finish == Finish.INTERRUPTED
    assert len(answer.ids) >= 1


async def test_nothing_is_left_of_requests_that_ended_in_any_way(engine: ContinuousBatchingEngine) -> None:
    """Finished, interrupted while running, closed while waiting: the manager's books and ours are empty again."""
    await sample(engine, request_id="finished")
    interrupted = engine.generate("interrupted", PROMPT, params(max_tokens=100))
    await anext(interrupted)
    await engine.interrupt("interrupted")
    assert joined([chunk async for chunk in interrupted]).finish == Finish.INTERRUPTED
    closed = engine.generate("closed", PROMPT, params(max_tokens=100))
    await anext(closed)
    await closed.aclose()  # type: ignore[attr-defined]
    await sample(engine, request_id="finished")  # a pass later

    serving = engine._alive()
    scheduler = serving.manager.batch_processor.scheduler
    assert (engine._open, scheduler.active_requests, scheduler.waiting_requests) == ({}, {}, {})
    assert serving.manager.output_router.output_queue.empty()
    assert scheduler.cache.compute_free_capacity() == 1.0
