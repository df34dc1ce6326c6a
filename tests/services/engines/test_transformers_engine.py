"""What only the transformers engine can get wrong: its thread, its weights, its draws."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError
from tests.services.engines.conftest import CONTEXT, FIRST_VERSION, PROMPT, broken_weights, params, sample

torch = pytest.importorskip("torch")

from seamlessflow_rollout_worker.engines.token_sampler import draw  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.kv_cache import shared_prefix_length  # noqa: E402 - after the skip


@pytest.fixture
async def engine(tiny_llamas: list[Path]):  # type: ignore[no-untyped-def]
    made = TransformersEngine(dtype="float32", num_slots=4, max_context_tokens=CONTEXT, num_threads=1)
    await made.start(tiny_llamas[0], weights_version=FIRST_VERSION)
    yield made
    await made.stop()


async def test_a_dead_thread_fails_every_request_and_call_instead_of_hanging(
    engine: TransformersEngine, tiny_llamas: list[Path], tmp_path: Path
) -> None:
    """Weights that give no finite logits kill the thread; all who wait must hear of it, and a restart heals it."""
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


async def test_the_first_token_of_a_streamed_request_waits_for_no_company(engine: TransformersEngine, monkeypatch) -> None:
    """Others may wait, and here they do so to the end of their request."""
    for name in ("FLUSH_SECONDS", "STREAMED_FLUSH_SECONDS"):
        monkeypatch.setattr(f"seamlessflow_rollout_worker.engines.transformers.engine_thread.{name}", 1e9)

    async def lengths(is_streamed: bool) -> list[int]:
        wanted = params(max_tokens=100, is_streamed=is_streamed)
        return [len(chunk.token_ids) async for chunk in engine.generate("r", PROMPT, wanted)]

    assert await lengths(False) == [100]
    first, *rest = await lengths(True)
    assert 1 <= first < 100 and first + sum(rest) == 100


async def test_tokens_of_a_streamed_request_wait_less(engine: TransformersEngine, monkeypatch) -> None:
    """Where somebody reads along, each pass may be reported; what is sampled stays the same."""
    monkeypatch.setattr("seamlessflow_rollout_worker.engines.transformers.engine_thread.FLUSH_SECONDS", 1e9)
    monkeypatch.setattr("seamlessflow_rollout_worker.engines.transformers.engine_thread.STREAMED_FLUSH_SECONDS", 0.0)

    chunks = [chunk async for chunk in engine.generate("r", PROMPT, params(max_tokens=60, is_streamed=True))]

    assert len(chunks) > 2
    assert [i for chunk in chunks for i in chunk.token_ids] == (await sample(engine, max_tokens=60)).ids


async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """And the engine can be started with a good one afterwards: nothing was left running."""
    engine = TransformersEngine()
    with pytest.raises(BadInput, match=r"config\.json"):
        await engine.start(tmp_path, weights_version=1)
    with pytest.raises(EngineError, match="not running"):
        await engine.pause()


def test_draws_follow_the_distribution() -> None:
    """Evenly spread uniform numbers hit each token as often as its probability says; cut tokens never."""
    logits = torch.log(torch.tensor([[0.5, 0.0, 0.25, 0.15, 0.1]]))
    spread = [(i + 0.5) / 1000 for i in range(1000)]

    def counts(top_p: float) -> list[int]:
        tokens, _ = draw(logits.expand(1000, 5), [params(top_p=top_p)] * 1000, spread)
        return [tokens.count(token) for token in range(5)]

    assert counts(1.0) == [500, 0, 250, 150, 100]
    assert counts(0.7) == pytest.approx([667, 0, 333, 0, 0], abs=1)


def test_the_largest_uniform_number_still_draws_a_possible_token() -> None:
    """Rounding at the end of the cdf must not name a token past the vocabulary, or one of probability zero."""
    logits = torch.log(torch.tensor([[0.3, 0.7, 0.0]]))

    assert draw(logits, [params()], [1.0 - 2**-53])[0] == [1]


@pytest.mark.parametrize(
    ("other", "at_least", "expected"), [(PROMPT, 0, 6), ([*PROMPT[:4], 1], 0, 4), ([1], 0, 0), (PROMPT, 6, 0)]
)
def test_shared_prefixes_are_measured_exactly(other: list[int], at_least: int, expected: int) -> None:
    """One token too many would reuse a wrong cache entry."""
    assert shared_prefix_length(PROMPT, other, at_least=at_least) == expected
