"""What a rollout-worker asks of an engine: sample tokens, and be interrupted at any one of them.

An engine samples; it knows nothing of episodes, calls or the bus.
Always true, for every engine (tests/services/engines):

* every sampled token is reported exactly once, in order, with the logprob of the distribution it was drawn from
  (after temperature; before top-p) and the version of the weights that drew it;
* ``interrupt`` and ``pause`` lose no token: what was sampled before is reported before they return;
* between ``pause`` and ``resume`` nothing is sampled; requests and their caches stay;
* after ``load_weights`` no new request reuses a cache that older weights computed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from seamlessflow.errors import BadInput, Unavailable


class EngineError(Unavailable):
    """The engine is not running or died; the same request may succeed on another worker, or here after a restart."""


class Finish(StrEnum):
    """Why an engine stopped a request."""

    STOP = "stop"
    """A stop token was sampled; it is the last token reported."""
    LENGTH = "length"
    """The token budget or the context is used up."""
    INTERRUPTED = "interrupted"
    """``interrupt`` was called: hand back or finish elsewhere."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw. temperature 0.0: greedy, logprobs then are those at temperature 1.

    seed given: the draw at each position depends on the seed and the position only (``draws.uniform``), so a request
    continued elsewhere draws as if it had never moved. None: the engine's own stream.
    """

    temperature: float
    top_p: float
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    seed: int | None = None
    is_streamed: bool = False
    """Somebody reads along: report its tokens soon. False: they may wait a little for company."""
    weights_version: int | None = None
    """Which version, for an engine that has several (``two_versions``); others have one. None: the newest."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens sampled since the last chunk, all under one weights version. ``finish`` set: the last chunk."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weights_version: int
    finish: Finish | None = None


@dataclass(slots=True)
class PrefixUse:
    """How much of what an engine was fed it had already, counted since its start."""

    prompt_tokens: int = 0
    """Tokens that sequences had when the engine began with them, or began again after its cache was freed."""
    cached_tokens: int = 0
    """Those of them whose keys and values were there."""


@runtime_checkable
class CountsPrefixes(Protocol):
    """An engine that knows its ``PrefixUse``; others share no prefixes, or do not tell."""

    @property
    def prefix_use(self) -> PrefixUse | None:
        """None: it does not know."""
        ...


@runtime_checkable
class KnowsCache(Protocol):
    """An engine that keeps contexts for later calls and knows how many tokens of them it has room for."""

    @property
    def cache_tokens(self) -> int | None:
        """None: it does not know."""
        ...


class Engine(Protocol):
    """One model on one device. All methods are called from one asyncio loop and do not block it."""

    @property
    def weights_version(self) -> int: ...
    @property
    def num_slots(self) -> int:
        """Requests that run side by side."""
        ...

    @property
    def max_context_tokens(self) -> int: ...
    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        """Load the model and serve. Raises BadInput for a folder it cannot serve."""
        ...

    async def stop(self) -> None:
        """End every request with INTERRUPTED and let go of the model; ``start`` may follow. Idempotent."""
        ...

    def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        """Sample a continuation; errors rise from the first ``anext``. Closing the iterator frees the slot.

        Raises EngineError when the engine is not running or died; BadInput for what ``check_request`` refuses and for
        an id that is already running. Beyond ``num_slots`` requests, and while paused, a request waits its turn.
        """
        ...

    async def interrupt(self, request_id: str) -> None:
        """End one request now; its iterator yields what was sampled and ends with INTERRUPTED. Unknown id: nothing."""
        ...

    async def pause(self) -> None:
        """Freeze between two tokens; idempotent."""
        ...

    async def resume(self) -> None: ...
    async def stage_weights(self, file: Path) -> None:
        """Read a version (safetensors, names as in the model's) while sampling goes on: ``load_weights`` has only to copy.

        Raises BadInput where it cannot be read, or a name, a shape or a dtype does not fit; nothing is lost then.
        Only the last file staged is kept.
        """
        ...

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        """Swap a version in while paused, staging it first where that was not done.

        Raises EngineError when not paused; BadInput as ``stage_weights``: then nothing was copied.
        """
        ...

    async def sleep(self) -> None:
        """Give the device back: paused, and memory freed where the engine can."""
        ...

    async def wake(self) -> None: ...


def stops_within(params: SamplingParams, vocab_size: int) -> tuple[int, ...]:
    """The stop tokens that can be sampled. Others stop nothing, and vLLM refuses a request that has one."""
    return tuple(each for each in params.stop_token_ids if 0 <= each < vocab_size)


def check_request(prompt_ids: list[int], params: SamplingParams, *, max_context_tokens: int, vocab_size: int) -> None:
    """Raise BadInput unless the request leaves room for one token and every number in it makes sense."""
    if not 1 <= len(prompt_ids) < max_context_tokens:
        raise BadInput(
            f"A prompt must have 1..{max_context_tokens - 1} tokens (context {max_context_tokens}, one to sample); "
            f"this one has {len(prompt_ids)}. Nothing was sampled."
        )
    if not (min(prompt_ids) >= 0 and max(prompt_ids) < vocab_size):
        raise BadInput(
            f"Prompt ids must lie in 0..{vocab_size - 1}; found {min(prompt_ids)}..{max(prompt_ids)}. "
            "Was the prompt encoded with another model's tokenizer?"
        )
    if not (params.max_tokens >= 1 and params.temperature >= 0.0 and 0.0 < params.top_p <= 1.0):
        raise BadInput(f"Expected max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1; got {params}.")
