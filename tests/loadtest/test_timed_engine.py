"""Timed devices: a generation keeps its length wherever it goes on, and a gang of several takes a step in less time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("torch")

from loadtest.fleet import timed_learner
from loadtest.fleet.cost import cost_of
from loadtest.fleet.timed_clock import Scale, length_in, seed_with_length
from loadtest.fleet.timed_engine import TimedEngine
from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import EpisodeOrigin, EpisodeStatus, Float32s, Int32s, Sample, SamplesReady
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_rollout_worker.engines.base import Chunk, Finish, SamplingParams
from seamlessflow_trainer.data.batch import make_batch
from seamlessflow_trainer.data.groups import TrainingGroup
from seamlessflow_trainer.learner.base import Abandoned

BUDGET, STOP, WORDS = 1000, 2, [5, 6, 7]
COST = cost_of()


def an_engine(**changes: object) -> TimedEngine:
    """A hundred times faster than modelled; one token of the data plane stands for eight."""
    settings: dict[str, object] = {
        "words": WORDS,
        "vocab_size": 10,
        "num_slots": 8,
        "max_context_tokens": 1 << 20,
        "length_of": lambda seed, left: length_in(seed) - (BUDGET - left),
        "report_seconds": 60.0,
    }
    return TimedEngine(COST, Scale(100.0, 8), **{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture
async def engines() -> AsyncIterator[tuple[TimedEngine, TimedEngine]]:
    """Two workers'."""
    both = an_engine(), an_engine()
    for engine in both:
        await engine.start(Path("unused"), weights_version=1)
    yield both
    for engine in both:
        await engine.stop()


def params(tokens: int, *, done: int = 0) -> SamplingParams:
    seed = seed_with_length(11, tokens)
    return SamplingParams(temperature=1.0, top_p=1.0, max_tokens=BUDGET - done, stop_token_ids=(STOP,), seed=seed)


async def read(engine: TimedEngine, prompt: list[int], asked: SamplingParams, name: str = "r") -> list[Chunk]:
    return [chunk async for chunk in engine.generate(name, prompt, asked)]


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_a_generation_ends_at_its_length_with_a_stop_token(engines: tuple[TimedEngine, TimedEngine]) -> None:
    """Nobody else's token ends it."""
    chunks = await read(engines[0], [1] * 9, params(40))

    ids = ids_of(chunks)
    assert (len(ids), ids[-1], chunks[-1].finish) == (40, STOP, Finish.STOP)
    assert set(ids[:-1]) <= set(WORDS)


async def test_handed_on_twice_it_is_the_generation_it_would_have_been(engines: tuple[TimedEngine, TimedEngine]) -> None:
    """Interrupted somewhere in the middle, and continued elsewhere with what is left of its budget."""
    whole = ids_of(await read(engines[0], [1] * 9, params(900)))
    ids: list[int] = []
    for place in (0, 1):
        reading = asyncio.create_task(read(engines[place], [1] * 9 + ids, params(900, done=len(ids)), f"part{place}"))
        await asyncio.sleep(0.05)
        await engines[place].interrupt(f"part{place}")
        ids += ids_of(await reading)
    if len(ids) < len(whole):  # a machine that stood still meanwhile is done
        ids += ids_of(await read(engines[0], [1] * 9 + ids, params(900, done=len(ids)), "rest"))

    assert ids == whole


async def test_new_weights_change_the_version_and_not_the_length(
    engines: tuple[TimedEngine, TimedEngine], tmp_path: Path
) -> None:
    """What was sampled before the pause is stamped with the old one."""
    weights_file = tmp_path / "model.safetensors"
    save_file({"steps": np.ones(1)}, weights_file)
    reading = asyncio.create_task(read(engines[0], [1] * 9, params(300)))
    await asyncio.sleep(0.05)
    await engines[0].pause()
    await engines[0].load_weights(weights_file, weights_version=2)
    await engines[0].resume()
    chunks = await reading

    assert [chunk.weights_version for chunk in chunks] == [1, 2]
    assert len(ids_of(chunks)) == 300


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def a_batch(tokens: int) -> object:
    """Two members, each of so many tokens, prompt included."""
    members = tuple(
        SamplesReady(
            run="r",
            episode=f"g-{index}-0",
            origin=EpisodeOrigin(group="g", task="t", env="e", index=index, attempt=0),
            status=EpisodeStatus.COMPLETED,
            reward=float(index),
            samples=(
                Sample(
                    token_ids=Int32s([1] * tokens),
                    spans=((1, tokens),),
                    logprobs=Float32s([0.0] * (tokens - 1)),
                    versions=((0, tokens - 1),),
                ),
            ),
            num_sampled=tokens - 1,
        )
        for index in (0, 1)
    )
    return make_batch([TrainingGroup("g", members)], VersionSteps([(0, 0)]), 0, 0, AlgorithmSection(steps=1))


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_a_step_takes_what_the_cost_model_says_of_its_gang(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts' tokens over the gang's nodes, and the fixed part once."""
    clock = Clock()
    monkeypatch.setattr(timed_learner, "time", clock)
    learner = timed_learner.TimedLearner(COST, Scale(10.0, 32), vocab_size=10)
    parts = [a_batch(100), a_batch(50)]
    learner.train_parts(parts, learning_rate=0.0, num_nodes=nodes, should_stop=lambda: False)  # type: ignore[arg-type]

    assert clock.now == pytest.approx(COST.train_seconds(300 * 32, nodes) / 10.0)


def test_a_timed_step_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only between two parts."""
    clock = Clock()
    monkeypatch.setattr(timed_learner, "time", clock)
    learner = timed_learner.TimedLearner(COST, Scale(), vocab_size=10)
    with pytest.raises(Abandoned):
        learner.train_parts(
            [a_batch(1_000_000)],  # type: ignore[list-item]
            learning_rate=0.0,
            num_nodes=1,
            should_stop=lambda: clock.now > 1.0,
        )
    assert clock.now < 1.1
