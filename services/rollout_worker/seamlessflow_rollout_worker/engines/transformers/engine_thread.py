"""The thread that owns a model and its batch: runs jobs and forward passes in turn, and delivers what was sampled.

Methods below "in the thread" are jobs: hand them to ``submit``. A job runs between two passes, never during one, and
what was sampled before it is delivered before it starts. An error of a job is the job's own; an error of a pass ends
the thread, which then reports it once through ``on_death``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from torch import Tensor

from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish
from seamlessflow_rollout_worker.engines.open_requests import NOT_PAUSED

from .causal_model import CausalModel
from .decode_batch import DecodeBatch, Sampled, Sequence

FLUSH_SECONDS = 0.05
"""Tokens wait this long for company before they are delivered; the end of a request never waits."""
STREAMED_FLUSH_SECONDS = 0.02
"""The same for tokens of a request that somebody reads along with; its first token never waits."""


class EngineThread:
    """One model, one batch, one thread. ``deliver`` and ``on_death`` are called in the thread and must not block."""

    def __init__(
        self,
        model: CausalModel,
        batch: DecodeBatch,
        *,
        weights_version: int,
        deliver: Callable[[list[tuple[int, Chunk]]], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self.weights_version = weights_version
        self._model = model
        self._batch = batch
        self._deliver = deliver
        self._on_death = on_death
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._undelivered: list[tuple[int, Chunk]] = []
        self._delivered_at = 0.0
        self._paused = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Have ``job`` run in the thread; jobs run in the order given. It must handle its own errors."""
        self._jobs.put(job)

    def join(self) -> None:
        """Wait for the thread to end; blocks."""
        self._thread.join()

    # ------------------------------------------------------------------------------------------ in the thread

    def add(self, sequence: Sequence) -> None:
        self._batch.add(sequence)

    def drop(self, ticket: int) -> None:
        """Free the slot of a request nobody listens to any more."""
        self._batch.remove(ticket)

    def interrupt(self, ticket: int) -> None:
        """End a request with INTERRUPTED; nothing when it has ended already."""
        if self._batch.remove(ticket):
            self._deliver([(ticket, Chunk((), (), self.weights_version, Finish.INTERRUPTED))])

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._delivered_at = 0.0  # who waited through the pause waits for no company

    def load(self, tensors: Mapping[str, Tensor], weights_version: int) -> None:
        if not self._paused:
            raise EngineError(NOT_PAUSED)
        self._model.adopt(tensors)
        self._batch.forget_cache()
        self.weights_version = weights_version

    def release(self) -> None:
        """Pause and free the cache."""
        self._paused = True
        self._batch.release_cache()

    def finish(self) -> None:
        """End the thread after this job."""
        self._stopping = True

    # ------------------------------------------------------------------------------------------ the loop itself

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_jobs()
                if not self._paused and not self._stopping:
                    self._pass()
        except BaseException as error:
            self._flush()
            self._on_death(error)

    def _run_jobs(self) -> None:
        """Run the jobs that wait; with nothing else to do, wait for one."""
        block = self._paused or not len(self._batch)
        while not self._stopping:
            try:
                job = self._jobs.get(block=block)
            except queue.Empty:
                return
            self._flush()
            job()
            block = False

    def _pass(self) -> None:
        sampled = self._batch.step()
        for token in sampled:
            chunk = Chunk((token.token_id,), (token.logprob,), self.weights_version, token.finish)
            self._undelivered.append((token.ticket, chunk))
        age = time.monotonic() - self._delivered_at
        if any(age >= _patience(token) for token in sampled):
            self._flush()

    def _flush(self) -> None:
        if self._undelivered:
            self._deliver(self._undelivered)
            self._undelivered = []
            self._delivered_at = time.monotonic()


def _patience(token: Sampled) -> float:
    """How many seconds a token may wait for company."""
    if token.finish is not None or (token.is_streamed and token.is_first):
        return 0.0
    return STREAMED_FLUSH_SECONDS if token.is_streamed else FLUSH_SECONDS
