"""What our engines have in front of the sampling: their limits, their open requests, the words of their refusals.

Nothing here samples; each engine keeps the promises of ``Engine`` in its own way behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import EngineError, SamplingParams, check_request
from seamlessflow_rollout_worker.engines.outbox import Box, Outbox

NOT_RUNNING = "The engine is not running; start it first."
ALREADY_RUNNING = "The engine is already running; stop it first."
NOT_PAUSED = "Weights can be loaded only while paused; call pause() first. Nothing was copied."


def died_of(reason: object) -> EngineError:
    """The refusal of every call after a death."""
    return EngineError(f"The engine died of {reason!r}. Stop and start it.")


class EngineFront(ABC):
    """The part of an ``Engine`` that is the same for all of ours. max_context_tokens: an engine may cap it at ``start``."""

    def __init__(self, *, num_slots: int, max_context_tokens: int) -> None:
        self._num_slots = num_slots
        self._max_context_tokens = max_context_tokens
        self._weights_version = 0
        self._outbox = Outbox()

    @property
    def weights_version(self) -> int:
        return self._weights_version

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def max_context_tokens(self) -> int:
        return self._max_context_tokens

    @abstractmethod
    async def pause(self) -> None: ...

    @abstractmethod
    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        """Pause; no memory is freed."""
        await self.pause()

    async def wake(self) -> None:
        await self.resume()

    def _admit(self, request_id: str, prompt_ids: list[int], params: SamplingParams, *, vocab_size: int) -> tuple[int, Box]:
        """Open a request: its ticket and the box of its chunks. Raises BadInput for what ``Engine.generate`` refuses."""
        check_request(prompt_ids, params, max_context_tokens=self._max_context_tokens, vocab_size=vocab_size)
        if self._outbox.ticket_of(request_id) is not None:
            raise BadInput(f"Request {request_id} is already running; ids must be unique among running requests.")
        return self._outbox.open(request_id)
