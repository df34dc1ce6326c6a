"""Two engines as one that has two weights versions; over the scripted engine, and over a real (tiny) model.

| promise | test |
|---|---|
| a request is sampled under one version to its end, as by an engine that never had another | test_a_request_keeps_* |
| new weights interrupt what they replace, and nobody else | test_new_weights_*, test_what_is_kept_* |
| an older version never takes the place of the newest | test_an_older_version_* |
| weights that do not fit change nothing | test_weights_that_do_not_fit_* |
| pause, sleep, stop and errors as of any engine | test_paused_*, test_both_*, ... |
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import CountsPrefixes, Engine, EngineError, Finish, KnowsCache
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine
from seamlessflow_rollout_worker.engines.two_version_engine import TwoVersions
from tests.services.engines.conftest import CONTEXT, PROMPT, SLOTS, VOCAB_SIZE, Answer, _logits_file, joined, params, sample

SECONDS_PER_TOKEN = 0.004


@dataclass
class Pair:
    """``files``: weights of versions 0, 1, 2, ...; ``folder``: to start from, with those of version 0."""

    both: TwoVersions
    alone: Engine
    """One of the kind, for what a version should sample."""
    folder: Path
    files: list[Path]
    changes: list[tuple[int, ...]]
    """What it had after each change."""

    async def sampled_alone(self, version: int, **changes: object) -> list[int]:
        """What an engine samples that never had another version."""
        await self.alone.start(self.folder, weights_version=0)
        await self.alone.pause()
        await self.alone.load_weights(self.files[version], weights_version=version)
        await self.alone.resume()
        answer = await sample(self.alone, **changes)
        await self.alone.stop()
        return answer.ids

    async def load(self, version: int) -> None:
        await self.both.load_weights(self.files[version], weights_version=version)


def _scripted() -> ScriptedEngine:
    return ScriptedEngine(
        vocab_size=VOCAB_SIZE, num_slots=SLOTS, max_context_tokens=CONTEXT, seconds_per_token=SECONDS_PER_TOKEN
    )


def _table(version: int) -> list[list[float]]:
    columns = range(VOCAB_SIZE)
    return [[math.sin((version + 1) * (row * VOCAB_SIZE + column)) for column in columns] for row in columns]


def _models(folder: Path, llama: Path) -> list[Path]:
    """The model's weights, and others of its shape."""
    from safetensors.torch import load_file, save_file

    tensors, files = load_file(llama / "model.safetensors"), []
    for version in range(5):
        files.append(folder / f"{version}.safetensors")
        save_file({name: tensor * (1.0 + 0.7 * version) for name, tensor in tensors.items()}, files[-1])
    return files


@pytest.fixture(params=["scripted", "transformers"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    if request.param == "scripted":
        folder, files = tmp_path, [_logits_file(tmp_path, str(version), _table(version)) for version in range(5)]
        make = _scripted
    else:
        from seamlessflow_rollout_worker.engines.transformers.decode_batch import DecodeBatch, Sampled
        from seamlessflow_rollout_worker.engines.transformers.engine import TransformersEngine

        step = DecodeBatch.step

        def slowly(batch: DecodeBatch) -> list[Sampled]:
            time.sleep(SECONDS_PER_TOKEN)  # else a busy machine finds a request at its end that it is to interrupt
            return step(batch)

        monkeypatch.setattr(DecodeBatch, "step", slowly)
        folder = request.getfixturevalue("tiny_llamas")[0]
        files = _models(tmp_path, folder)

        def make() -> Engine:
            return TransformersEngine(dtype="float32", num_slots=SLOTS, max_context_tokens=CONTEXT, num_threads=1, seed=0)

    changes: list[tuple[int, ...]] = []
    both = TwoVersions((make(), make()), lambda: changes.append(both.held))
    await both.start(folder, weights_version=0)
    if request.param == "scripted":  # it starts with a table of its own
        both._versions[0] = None
        await both.load_weights(files[0], weights_version=0)
    changes.clear()
    made = Pair(both, make(), folder, files, changes)
    yield made
    await both.stop()


class Reading:
    """A request read in the background."""

    def __init__(self, engine: Engine, request_id: str, version: int | None, max_tokens: int) -> None:
        self.chunks: list = []
        self._arrived = asyncio.Event()
        self.task = asyncio.create_task(self._read(engine, request_id, params(weights_version=version, max_tokens=max_tokens)))

    async def _read(self, engine: Engine, request_id: str, how: object) -> None:
        async for chunk in engine.generate(request_id, PROMPT, how):
            self.chunks.append(chunk)
            self._arrived.set()

    async def begun(self) -> Reading:
        await asyncio.wait_for(self._arrived.wait(), 20)
        return self

    async def whole(self) -> Answer:
        await asyncio.wait_for(self.task, 20)
        return joined(self.chunks)


async def test_a_request_keeps_its_version_while_the_newest_moves_on(pair: Pair) -> None:
    """Three updates while it is sampled; its tokens are those of an engine that never saw any of them."""
    kept = await Reading(pair.both, "kept", 0, 60).begun()
    pair.both.keeps = 0
    for version in (1, 2, 3):
        await pair.load(version)
        newest = await sample(pair.both, max_tokens=4)
        assert set(newest.versions) == {version}
    answer = await kept.whole()

    assert set(answer.versions) == {0} and answer.finish is Finish.LENGTH
    assert answer.ids == await pair.sampled_alone(0, max_tokens=60)


async def test_each_request_is_sampled_under_the_version_it_names(pair: Pair) -> None:
    """Side by side; one that names none under the newest."""
    await pair.load(1)
    old, new, any_ = await asyncio.gather(
        sample(pair.both, request_id="old", weights_version=0),
        sample(pair.both, request_id="new", weights_version=1),
        sample(pair.both, request_id="any"),
    )

    assert (set(old.versions), set(new.versions), set(any_.versions)) == ({0}, {1}, {1})
    assert (old.ids, new.ids) == (await pair.sampled_alone(0), await pair.sampled_alone(1))
    assert old.ids != new.ids == any_.ids


async def test_new_weights_replace_the_older_of_two_and_interrupt_what_it_sampled(pair: Pair) -> None:
    """What was sampled is reported; who goes on with it elsewhere goes on behind that."""
    await pair.load(1)
    old, new = Reading(pair.both, "old", 0, 100), Reading(pair.both, "new", 1, 20)
    await asyncio.gather(old.begun(), new.begun())
    await pair.load(2)
    old_answer, new_answer = await old.whole(), await new.whole()

    assert old_answer.finish is Finish.INTERRUPTED and set(old_answer.versions) == {0}
    assert new_answer.finish is Finish.LENGTH and set(new_answer.versions) == {1}
    assert pair.both.held == (1, 2)
    assert pair.changes == [(0, 1), (1,), (1, 2)], "it says that it lost a version before it takes another"


async def test_what_is_kept_stays_and_what_was_newest_is_replaced(pair: Pair) -> None:
    """As the scheduler says; the one that goes may have another holder."""
    await pair.load(1)
    pair.both.keeps = 0
    newest = await Reading(pair.both, "r1", 1, 100).begun()
    await pair.load(2)

    assert pair.both.held == (0, 2)
    assert (await newest.whole()).finish is Finish.INTERRUPTED


async def test_an_older_version_never_takes_the_place_of_the_newest(pair: Pair) -> None:
    """It was fetched to be kept: of the two that are here the older one goes."""
    for version in (1, 3):
        await pair.load(version)
    pair.both.keeps = 2
    await pair.load(2)
    assert (pair.both.held, pair.both.weights_version) == ((2, 3), 3)
    pair.both.keeps = 1
    await pair.load(1)

    assert (pair.both.held, pair.both.weights_version) == ((1, 3), 3)
    assert (await sample(pair.both, weights_version=1)).ids == await pair.sampled_alone(1)


async def test_a_version_that_is_not_here_ends_at_once_without_a_token(pair: Pair) -> None:
    """As one that was replaced just now: it goes on elsewhere."""
    answer = await sample(pair.both, weights_version=4)

    assert (answer.ids, answer.finish) == ([], Finish.INTERRUPTED)


async def test_weights_that_do_not_fit_are_refused_and_change_nothing(pair: Pair, tmp_path: Path) -> None:
    """Nothing is interrupted either: they are looked at first."""
    await pair.load(1)
    (tmp_path / "torn.safetensors").write_bytes(b"half")
    old = await Reading(pair.both, "old", 0, 20).begun()
    with pytest.raises(BadInput):
        await pair.both.load_weights(tmp_path / "torn.safetensors", weights_version=2)

    assert pair.both.held == (0, 1)
    assert (await old.whole()).finish is Finish.LENGTH
    await pair.load(2)
    assert pair.both.held == (1, 2)


async def test_paused_it_samples_nothing_and_loads_all_the_same(pair: Pair) -> None:
    """As while its device is lent: new weights come, old ones go on when it is resumed."""
    kept = await Reading(pair.both, "kept", 0, 40).begun()
    await pair.both.pause()
    await asyncio.sleep(0.02)
    num_chunks = len(kept.chunks)
    await pair.load(1)
    fresh = Reading(pair.both, "fresh", None, 4)
    await asyncio.sleep(0.05)
    assert (len(kept.chunks), fresh.chunks) == (num_chunks, [])
    await pair.both.resume()

    assert set((await kept.whole()).versions) == {0}
    assert set((await fresh.whole()).versions) == {1}


async def test_who_pauses_waits_for_no_file_that_is_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is to be lent while a large version is read: it is read on, and loaded all the same."""
    await pair.load(2)
    free, begun = asyncio.Event(), asyncio.Event()
    for engine in pair.both._engines:

        async def slowly(file: Path, stage=engine.stage_weights) -> None:
            begun.set()
            await free.wait()
            await stage(file)

        monkeypatch.setattr(engine, "stage_weights", slowly)
    loading = asyncio.create_task(pair.load(1))
    await begun.wait()
    await asyncio.wait_for(pair.both.pause(), 5)
    assert not loading.done()
    free.set()
    await loading
    await pair.both.resume()

    assert pair.both.held == (1, 2)


async def test_both_sleep_wake_and_are_interrupted_by_name(pair: Pair) -> None:
    """Whichever engine a request is in."""
    await pair.load(1)
    old, new = Reading(pair.both, "old", 0, 100), Reading(pair.both, "new", 1, 100)
    await asyncio.gather(old.begun(), new.begun())
    await pair.both.sleep()
    await pair.both.wake()
    for request_id in ("old", "new", "nobody"):
        await pair.both.interrupt(request_id)

    assert {(await reading.whole()).finish for reading in (old, new)} == {Finish.INTERRUPTED}


async def test_a_version_that_is_here_is_not_loaded_again(pair: Pair) -> None:
    """Both may be told of it: who follows the newest, and who fetches what is to be kept."""
    await pair.load(1)
    running = await Reading(pair.both, "r", 1, 20).begun()
    await pair.load(1)

    assert (await running.whole()).finish is Finish.LENGTH


async def test_an_id_that_is_running_is_refused(pair: Pair) -> None:
    """In whichever engine it runs."""
    await pair.load(1)
    await pair.both.pause()  # else it may be done before the other comes
    running = Reading(pair.both, "r", 0, 20)
    await asyncio.sleep(0)
    with pytest.raises(BadInput, match="already running"):
        await sample(pair.both, request_id="r", weights_version=1)
    await pair.both.resume()
    await running.whole()


async def test_stopped_it_says_so_and_starts_again(pair: Pair) -> None:
    """With one version, as at first."""
    await pair.load(1)
    running = await Reading(pair.both, "r", 0, 100).begun()
    await pair.both.stop()
    assert (await running.whole()).finish is Finish.INTERRUPTED
    with pytest.raises(EngineError):
        await sample(pair.both)
    await pair.both.start(pair.folder, weights_version=3)

    assert pair.both.held == (3,)
    assert set((await sample(pair.both, request_id="r")).versions) == {3}


async def test_its_cache_is_that_of_both_where_they_tell(pair: Pair) -> None:
    """People see how much of all prompts was there already, and no more new episodes are taken than one has room for."""
    assert pair.both.cache_tokens == (pair.alone.cache_tokens if isinstance(pair.alone, KnowsCache) else None)
    if not isinstance(pair.alone, CountsPrefixes):
        assert pair.both.prefix_use is None
        return
    await pair.load(1)
    await sample(pair.both, weights_version=0)
    await sample(pair.both, weights_version=1)

    assert pair.both.prefix_use is not None and pair.both.prefix_use.prompt_tokens == 2 * len(PROMPT)


async def test_one_that_cannot_start_leaves_none_running() -> None:
    """A machine that has not the memory for two."""

    class Broken(ScriptedEngine):
        async def start(self, model_dir: Path, *, weights_version: int) -> None:
            raise EngineError("out of memory")

    first = _scripted()
    with pytest.raises(EngineError, match="out of memory"):
        await TwoVersions((first, Broken())).start(Path("unused"), weights_version=0)
    with pytest.raises(EngineError):
        await sample(first)
