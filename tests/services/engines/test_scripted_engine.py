"""The scripted engine's own promises: its script, and a property over all of its sampling."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow_rollout_worker.engines.base import Finish, SamplingParams
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine, ToyPolicy
from tests.services.engines.conftest import joined, sample


async def test_a_script_is_said_and_an_interrupted_one_is_continued() -> None:
    """The answer comes word for word; a prompt that already has its beginning gets the rest."""
    engine = ScriptedEngine(script={(1, 2): [5, 6, 7, 31]})
    await engine.start(Path("unused"), weights_version=1)
    whole = await sample(engine, prompt=[1, 2], stop_token_ids=(31,))
    rest = await sample(engine, prompt=[1, 2, 5, 6], stop_token_ids=())
    await engine.stop()

    assert (whole.ids, whole.finish) == ([5, 6, 7, 31], Finish.STOP)
    assert (rest.ids, rest.finish) == ([7, 31], Finish.LENGTH)


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 15), min_size=1, max_size=30),
    max_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.floats(0.05, 1.0),
    stop=st.sets(st.integers(0, 15), max_size=2),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_interrupted_and_continued_anywhere_an_answer_is_the_same(
    prompt: list[int], max_tokens: int, temperature: float, top_p: float, stop: set[int], cuts: list[int]
) -> None:
    """Ids, logprobs and finish of the pieces join to those of the whole, and no budget is exceeded."""

    async def run(interrupt_after: list[int]) -> tuple[list[int], list[float], Finish]:
        engine = ScriptedEngine(vocab_size=16, max_context_tokens=48)
        await engine.start(Path("unused"), weights_version=1)
        ids: list[int] = []
        logprobs: list[float] = []
        while True:
            params = SamplingParams(temperature, top_p, max_tokens - len(ids), tuple(stop), seed=11)
            stream = engine.generate("r", prompt + ids, params)
            pending = interrupt_after.pop() if interrupt_after else None
            chunks = []
            async for chunk in stream:
                chunks.append(chunk)
                if pending is not None and len(joined(chunks).ids) >= pending:
                    await engine.interrupt("r")
            piece = joined(chunks)
            ids += piece.ids
            logprobs += piece.logprobs
            assert piece.finish is not None
            if piece.finish != Finish.INTERRUPTED:
                await engine.stop()
                return ids, logprobs, piece.finish

    whole = asyncio.run(run([]))
    pieces = asyncio.run(run(list(cuts)))

    assert pieces == whole
    assert len(whole[0]) <= max_tokens and len(prompt) + len(whole[0]) <= 48


@given(last=st.integers(0, 15), temperature=st.floats(0.1, 5.0), uniform=st.floats(0, 1, exclude_max=True))
def test_the_toy_distribution_sums_to_one_and_draws_a_possible_token(last: int, temperature: float, uniform: float) -> None:
    """Its logprobs are exact, whatever the temperature."""
    import math

    policy = ToyPolicy(16, seed=4)
    logprobs = policy.logprobs_after(last, temperature)

    assert math.isclose(sum(math.exp(x) for x in logprobs), 1.0, rel_tol=1e-9)
    assert 0 <= policy.draw(last, SamplingParams(temperature, 0.9, 1, ()), uniform) < 16
