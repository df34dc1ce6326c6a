"""When an engine's thread delivers what it sampled, on a clock that stands still: by what happened, not by how fast it is."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from seamlessflow_rollout_worker.engines.base import Chunk
from seamlessflow_rollout_worker.engines.transformers import engine_thread
from seamlessflow_rollout_worker.engines.transformers.decode_batch import Sampled
from seamlessflow_rollout_worker.engines.transformers.engine_thread import EngineThread

NOW = 1000.0


class Batch:
    """One sequence that gets a token in each pass. jobs: what comes in during a pass, by its number, the first is 1; passes:
    how many there are."""

    def __init__(self, passes: int, jobs: dict[int, tuple[str, ...]]) -> None:
        self.thread: EngineThread | None = None
        self._passes, self._jobs, self._num = passes, jobs, 0

    def __len__(self) -> int:
        return 1

    def step(self) -> list[Sampled]:
        assert self.thread is not None
        self._num += 1
        for name in self._jobs.get(self._num, ()):
            self.thread.submit(getattr(self.thread, name, lambda: None))
        if self._num == self._passes:
            self.thread.finish()
        return [Sampled(7, self._num, -1.0, None, is_first=self._num == 1, is_streamed=True)]


def delivered(monkeypatch: pytest.MonkeyPatch, passes: int, jobs: dict[int, tuple[str, ...]]) -> list[int]:
    """Tokens that were delivered when the thread has ended."""
    monkeypatch.setattr(engine_thread, "time", SimpleNamespace(monotonic=lambda: NOW))
    batch, found = Batch(passes, jobs), list[int]()

    def deliver(chunks: list[tuple[int, Chunk]]) -> None:
        found.extend(token for _, chunk in chunks for token in chunk.token_ids)

    died = threading.Event()
    made = EngineThread(
        SimpleNamespace(),  # type: ignore[arg-type]
        batch,  # type: ignore[arg-type]
        weights_version=0,
        deliver=deliver,
        on_death=lambda wrong: died.set(),
    )
    batch.thread = made
    made.start()
    made.join()
    assert not died.is_set()
    return found


def test_a_token_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one does not; the next would be late by a moment that has not passed."""
    assert delivered(monkeypatch, 3, {}) == [1]


@pytest.mark.parametrize("behind", [(), ("another",), ("another", "another")])
def test_who_waited_through_a_pause_gets_the_first_token_at_once(monkeypatch: pytest.MonkeyPatch, behind: tuple[str, ...]):
    """Whatever else is to be done before the next pass."""
    assert delivered(monkeypatch, 3, {1: ("pause", "resume", *behind)}) == [1, 2]


def test_what_was_sampled_before_a_job_is_delivered_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And counts: the next token waits again."""
    assert delivered(monkeypatch, 3, {2: ("another",)}) == [1, 2]
