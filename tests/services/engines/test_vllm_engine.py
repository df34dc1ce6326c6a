"""What only the vLLM engine can get wrong: its draws, its prefix cache, its asynchronous outputs, its processes.

The engine starts once, with a tiny model; that an updated one is a freshly loaded one is shown by its self-check
(test_vllm_check), and that none outlives a killed service by test_rollout_vllm.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

pytest.importorskip("vllm", reason="vLLM is not installed here; ./task test:vllm runs these tests")

import psutil
from safetensors.torch import load_file, save_file

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError, Finish, KnowsCache
from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine
from seamlessflow_rollout_worker.engines.vllm.engine import VllmEngine
from seamlessflow_rollout_worker.engines.weights_staging import Staging
from tests.services.engines.conftest import (
    CONTEXT,
    FIRST_VERSION,
    PROMPT,
    SLOTS,
    broken_weights,
    joined,
    params,
    sample,
)

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-4
"""Between two engines; the promises' suite compares each with a full forward, more strictly."""
BLOCK_TOKENS = 32
"""What prefixes are shared by."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tied_llamas: list[Path]) -> AsyncIterator[VllmEngine]:
    made = VllmEngine(
        dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT, num_threads=1, options={"block_size": BLOCK_TOKENS}
    )
    await made.start(tied_llamas[0], weights_version=FIRST_VERSION)
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def ours(tied_llamas: list[Path]) -> AsyncIterator[list[TransformersEngine]]:
    """Our own loop over the first weights and over the other ones."""
    engines = [TransformersEngine(dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT) for _ in tied_llamas]
    for each, folder in zip(engines, tied_llamas, strict=True):
        await each.start(folder, weights_version=FIRST_VERSION)
    yield engines
    for each in engines:
        await each.stop()


async def update(engine: VllmEngine, folder: Path) -> int:
    """Load a folder's weights as the next version."""
    version = engine.weights_version + 1
    await engine.pause()
    await engine.load_weights(folder / "model.safetensors", weights_version=version)
    await engine.resume()
    return version


async def test_how_much_its_cache_holds_is_known(engine):
    assert isinstance(engine, KnowsCache)
    assert engine.cache_tokens is not None
    assert engine.cache_tokens >= SLOTS * CONTEXT
    assert engine.cache_tokens % BLOCK_TOKENS == 0


async def test_it_draws_what_our_own_loop_draws(engine: VllmEngine, ours: list[TransformersEngine]) -> None:
    """Same weights, same seeds, same draws and logprobs: a generation may move from one kind of worker to the other."""
    for settings in ({"seed": 1}, {"seed": 2**90, "temperature": 0.7}, {"seed": 3, "top_p": 0.6}, {"temperature": 0.0}):
        theirs, own = [await sample(each, max_tokens=60, **settings) for each in (engine, ours[0])]
        assert theirs.ids == own.ids
        assert theirs.logprobs == pytest.approx(own.logprobs, abs=TOLERANCE)


async def test_prefixes_are_shared_within_a_version_and_by_nobody_after_an_update(
    engine: VllmEngine, ours: list[TransformersEngine], tied_llamas: list[Path]
) -> None:
    """The counts say what was reused, the logprobs whose it was; a version that comes back does not find its old ones."""
    prompt = [(11 * i) % 90 for i in range(3 * BLOCK_TOKENS + 1)]
    cached = [0]
    answers = []
    for weights in (0, 0, 1, 1, 0):
        if len(answers) in (2, 4):
            await update(engine, tied_llamas[weights])
        answers.append((await sample(engine, prompt, max_tokens=8), await sample(ours[weights], prompt, max_tokens=8)))
        cached.append(engine.prefix_use.cached_tokens)

    assert [after - before for before, after in pairwise(cached)] == [
        0, 3 * BLOCK_TOKENS, 0, 3 * BLOCK_TOKENS, 0,
    ]  # fmt: skip
    for theirs, own in answers:
        assert (theirs.ids, theirs.logprobs) == (own.ids, pytest.approx(own.logprobs, abs=TOLERANCE))


async def test_who_came_before_an_update_and_has_no_token_yet_belongs_to_the_new_weights(
    engine: VllmEngine, ours: list[TransformersEngine], tied_llamas: list[Path]
) -> None:
    """It is in vLLM already, under the old weights' prefixes, and would find them there."""
    prompt = [(7 * i) % 90 for i in range(3 * BLOCK_TOKENS + 1)]
    await update(engine, tied_llamas[0])
    await sample(engine, prompt)
    asked = [asyncio.create_task(sample(engine, prompt, f"r{i}", seed=i, max_tokens=8)) for i in range(SLOTS + 2)]
    await asyncio.sleep(0)
    await engine.pause()
    seen = sum(request.num_seen > 0 for request in engine._requests._running.values())
    await engine.load_weights(tied_llamas[1] / "model.safetensors", weights_version=(version := engine.weights_version + 1))
    await engine.resume()
    answers = await asyncio.gather(*asked)

    untouched = [(i, each) for i, each in enumerate(answers) if set(each.versions) == {version}]
    assert len(untouched) == len(asked) - seen > 0
    for seed, answer in untouched:
        own = await sample(ours[1], prompt, seed=seed, max_tokens=8)
        assert (answer.ids, answer.logprobs) == (own.ids, pytest.approx(own.logprobs, abs=TOLERANCE))


async def test_a_load_that_is_not_waited_for_is_over_before_anything_is_sampled_again(
    engine: VllmEngine, ours: list[TransformersEngine], tied_llamas: list[Path]
) -> None:
    """A deadline stops the waiting, not vLLM: resuming at once would stamp the old version on the new weights' tokens."""
    await update(engine, tied_llamas[0])
    file, version = tied_llamas[1] / "model.safetensors", engine.weights_version + 1
    await engine.stage_weights(file)
    await engine.pause()
    loading = asyncio.create_task(engine.load_weights(file, weights_version=version))
    await asyncio.sleep(0)
    loading.cancel()
    await engine.resume()
    answer, own = await sample(engine), await sample(ours[1])

    assert loading.cancelled() or loading.done()
    assert set(answer.versions) == {version}
    assert (answer.ids, answer.logprobs) == (own.ids, pytest.approx(own.logprobs, abs=TOLERANCE))


async def test_a_stop_token_that_the_model_does_not_have_stops_nothing(engine: VllmEngine) -> None:
    """vLLM refuses such a request, and what it refuses ends the engine for everybody."""
    answer = await sample(engine, max_tokens=5, stop_token_ids=(10**6, -1))

    assert (len(answer.ids), answer.finish) == (5, Finish.LENGTH)


async def test_a_stop_in_the_middle_of_a_load_is_an_error_and_no_cancellation(tied_llamas: list[Path]) -> None:
    """Whoever loads was not cancelled: a task that ended so would be taken for one that nobody wanted any more."""
    engine, is_loading = VllmEngine(), asyncio.Event()

    class Hanging:
        """Stands for vLLM: it never answers."""

        is_dead = False

        def check(self) -> None: ...

        async def load(self, file: Path) -> None:
            is_loading.set()
            await asyncio.Event().wait()

        async def end(self) -> None: ...

    engine._link, engine._staging, engine._is_paused = Hanging(), Staging(lambda file: file), True  # type: ignore[assignment]
    loading = asyncio.create_task(engine.load_weights(tied_llamas[0] / "model.safetensors", weights_version=9))
    await is_loading.wait()
    await engine.stop()

    with pytest.raises(EngineError, match="not running"):
        await asyncio.wait_for(loading, 5)


async def test_nothing_is_left_of_requests_that_ended_in_any_way(engine: VllmEngine) -> None:
    """Finished, interrupted, closed while running and before vLLM had it: its books and ours are empty again."""
    await sample(engine)
    interrupted = engine.generate("interrupted", PROMPT, params(max_tokens=100))
    await anext(interrupted)
    await engine.interrupt("interrupted")
    assert joined([chunk async for chunk in interrupted]).finish == Finish.INTERRUPTED
    for early in (False, True):
        closed = engine.generate("closed", PROMPT, params(max_tokens=100))
        reading = asyncio.ensure_future(anext(closed))
        await (asyncio.sleep(0) if early else reading)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await closed.aclose()  # type: ignore[attr-defined]
    await sample(engine)
    await asyncio.gather(*engine._forgetting, *engine._submitting)

    llm = engine._alive()._llm
    assert (engine._requests._open, engine._requests._running, llm.output_processor.request_states) == ({}, {}, {})
    assert llm.get_num_unfinished_requests() == 0


async def test_logits_that_are_no_numbers_end_it_for_everybody(
    engine: VllmEngine, tied_llamas: list[Path], tmp_path: Path
) -> None:
    """vLLM itself would sample on; whoever waits is told why, and every later call is."""
    await engine.pause()
    waiting = [asyncio.create_task(sample(engine, request_id=f"r{i}")) for i in range(2 * SLOTS)]
    await asyncio.sleep(0)
    await engine.load_weights(broken_weights(tied_llamas, tmp_path), weights_version=99)
    await engine.resume()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)

    assert [type(outcome) for outcome in outcomes] == [EngineError] * 2 * SLOTS
    for call in (sample(engine), engine.pause(), engine.resume(), engine.load_weights(Path("any"), weights_version=100)):
        with pytest.raises(EngineError, match="not finite"):
            await call


async def test_what_cannot_be_served_is_refused_before_a_process_starts(tied_llamas: list[Path], tmp_path: Path) -> None:
    """A folder without weights or config, an option unknown or ours, an architecture vLLM does not have."""
    config = json.loads((tied_llamas[0] / "config.json").read_text())
    for name, document in (("no-weights", config), ("strange", {**config, "architectures": ["StrangeForCausalLM"]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(document))
    save_file(load_file(tied_llamas[0] / "model.safetensors"), tmp_path / "strange" / "model.safetensors")
    num_children = len(psutil.Process().children())
    for folder, options, reason in (
        (tmp_path / "nothing", {}, r"config\.json"),
        (tmp_path / "no-weights", {}, "no weights"),
        (tmp_path / "strange", {}, "StrangeForCausalLM"),
        (tied_llamas[0], {"tensor_parallel": 2}, "tensor_parallel_size"),
        (tied_llamas[0], {"max_num_seqs": 2}, r"fleet\.slots"),
        (tied_llamas[0], {"block_size": "many"}, "vLLM cannot serve"),
    ):
        refused = VllmEngine(dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT, options=options)
        with pytest.raises(BadInput, match=reason):
            await refused.start(folder, weights_version=1)
        with pytest.raises(EngineError, match="not running"):
            await refused.pause()
    assert len(psutil.Process().children()) == num_children
