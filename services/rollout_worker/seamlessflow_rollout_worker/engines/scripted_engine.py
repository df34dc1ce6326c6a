"""A real engine without a neural network: seeded, exact, instant. For tests of the system around engines.

It keeps every promise of ``Engine`` and passes the same suite. Each request is an asyncio task; everything happens
in the loop, so a token is either sampled and reported, or neither.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seamlessflow.errors import BadInput
from seamlessflow.weights.safetensors_file import map_tensors

from .base import Chunk, EngineError, Finish, SamplingParams
from .open_requests import ALREADY_RUNNING, NOT_PAUSED, NOT_RUNNING, EngineFront
from .token_sampler import Draws
from .weights_staging import Staging

# A language model of one table: the next token depends on the last one only. Pure Python, exact, seeded.


Table = list[list[float]]
"""logits[last token][next token]."""
LOGITS = "logits"
"""Name of the one tensor that means something to engines without a neural network."""
_FLOATS = {"F32": np.float32, "F64": np.float64}


def read_logits(file: Path) -> NDArray[np.float64] | None:
    """The tensor ``logits`` of a safetensors file, None where it has none. Raises BadInput unless its numbers are finite
    and of 32 or 64 bits."""
    tensor = map_tensors(file).get(LOGITS)
    if tensor is None:
        return None
    if tensor.dtype not in _FLOATS:
        raise BadInput(f"logits: expected {' or '.join(_FLOATS)}, got {tensor.dtype}. Nothing was copied.")
    numbers = tensor.words.view(_FLOATS[tensor.dtype]).reshape(tensor.shape).astype(np.float64)
    if not np.isfinite(numbers).all():
        raise BadInput("logits: expected finite numbers. Nothing was copied.")
    return numbers


class ToyPolicy:
    """logits[last token][next token]; rows and columns are the vocabulary."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        stream = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self.vocab_size = vocab_size
        self._logits = [[stream.gauss(0.0, 1.0) for _ in range(vocab_size)] for _ in range(vocab_size)]

    def read_table(self, file: Path) -> Table | None:
        """The tensor ``logits`` of a safetensors file; None: it has none, and other tensors mean nothing to a table.

        Raises BadInput unless it is a square of finite numbers of this vocabulary's size.
        """
        given = read_logits(file)
        if given is None:
            return None
        if given.shape != (self.vocab_size, self.vocab_size):
            raise BadInput(f"logits: expected {self.vocab_size} x {self.vocab_size} numbers. Nothing was copied.")
        table: Table = given.tolist()
        return table

    def overwrite(self, table: Table) -> None:
        """Take over what ``read_table`` read."""
        self._logits = table

    def logprobs_after(self, last_token: int, temperature: float) -> list[float]:
        """The distribution of the next token after temperature; 0.0 counts as 1."""
        scaled = [x / (temperature or 1.0) for x in self._logits[last_token]]
        top = max(scaled)
        log_total = top + math.log(sum(math.exp(x - top) for x in scaled))
        return [x - log_total for x in scaled]

    def draw(self, last_token: int, params: SamplingParams, uniform: float) -> int:
        """The token that ``uniform`` in [0, 1) picks; the most likely one at temperature 0."""
        logprobs = self.logprobs_after(last_token, params.temperature)
        by_rank = sorted(range(self.vocab_size), key=lambda token: -logprobs[token])
        if params.temperature == 0.0:
            return by_rank[0]
        nucleus: list[int] = []
        mass = 0.0
        for token in by_rank:
            if nucleus and mass >= params.top_p:
                break
            nucleus.append(token)
            mass += math.exp(logprobs[token])
        target, reached = uniform * mass, 0.0
        for token in nucleus:
            reached += math.exp(logprobs[token])
            if reached > target:
                return token
        return nucleus[-1]


Script = Mapping[tuple[int, ...], Sequence[int]]
"""Prompt -> what to answer. A prompt that is a scripted one plus the beginning of its answer gets the rest."""


class ScriptedEngine(EngineFront):
    """Implements ``Engine``; see there for the promises.

    seed: of the toy distribution and of requests without a seed. script: answers that are not drawn; their logprobs are
    the table's all the same, and where an answer is exhausted without a stop token the request ends with LENGTH.
    seconds_per_token: pace of every request; 0.0 still lets other tasks run between two tokens.
    ``start`` ignores the folder.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 32,
        seed: int = 0,
        script: Script | None = None,
        seconds_per_token: float = 0.0,
        num_slots: int = 64,
        max_context_tokens: int = 4096,
    ) -> None:
        super().__init__(num_slots=num_slots, max_context_tokens=max_context_tokens)
        self._vocab_size = vocab_size
        self._seed = seed
        self._script = dict(script or {})
        self._seconds_per_token = seconds_per_token
        self._policy: ToyPolicy | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._staging: Staging[Table | None]

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        if self._policy is not None:
            raise EngineError(ALREADY_RUNNING)
        self._policy = ToyPolicy(self._vocab_size, self._seed)
        self._staging = Staging(self._policy.read_table)
        self._weights_version = weights_version
        self._engine_stream = random.Random(self._seed)  # noqa: S311 - sampling, not secrets
        self._slots = asyncio.Semaphore(self._num_slots)
        self._awake = asyncio.Event()
        self._awake.set()

    async def stop(self) -> None:
        self._policy = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outbox.interrupt_all(self._weights_version)

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        self._alive()
        ticket, box = self._admit(request_id, prompt_ids, params, vocab_size=self._vocab_size)
        task = asyncio.create_task(self._sample(ticket, list(prompt_ids), params))
        self._tasks[ticket] = task
        task.add_done_callback(lambda _: self._tasks.pop(ticket))
        try:
            async for chunk in box:
                yield chunk
        finally:
            task.cancel()
            self._outbox.close(request_id)

    async def interrupt(self, request_id: str) -> None:
        ticket = self._outbox.ticket_of(request_id)
        task = self._tasks.get(-1 if ticket is None else ticket)
        if ticket is not None and task is not None and task.cancel():
            self._outbox.deliver([(ticket, Chunk((), (), self._weights_version, Finish.INTERRUPTED))])

    async def pause(self) -> None:
        self._alive()
        self._awake.clear()

    async def resume(self) -> None:
        self._alive()
        self._awake.set()

    async def stage_weights(self, file: Path) -> None:
        self._alive()
        await self._staging.stage(file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        self._alive()
        if self._awake.is_set():
            raise EngineError(NOT_PAUSED)
        table = await self._staging.take(file)
        policy = self._alive()
        if table is not None:
            policy.overwrite(table)
        self._weights_version = weights_version

    def _alive(self) -> ToyPolicy:
        if self._policy is None:
            raise EngineError(NOT_RUNNING)
        return self._policy

    async def _sample(self, ticket: int, token_ids: list[int], params: SamplingParams) -> None:
        """Sample one request to its end, one token at each turn of the loop while awake."""
        draws = Draws(params.seed, self._engine_stream)
        scripted = self._answer_to(token_ids)
        num_left = min(params.max_tokens, self._max_context_tokens - len(token_ids))
        async with self._slots:
            while num_left > 0:
                await asyncio.sleep(self._seconds_per_token)
                if not self._awake.is_set():
                    await self._awake.wait()
                    continue
                policy = self._alive()
                if scripted is None:
                    token = policy.draw(token_ids[-1], params, draws.at(len(token_ids)))
                else:
                    token, *scripted = scripted
                logprob = policy.logprobs_after(token_ids[-1], params.temperature)[token]
                token_ids.append(token)
                num_left = 0 if scripted == [] else num_left - 1
                finish = Finish.LENGTH if num_left == 0 else None
                if token in params.stop_token_ids:
                    num_left, finish = 0, Finish.STOP
                self._outbox.deliver([(ticket, Chunk((token,), (logprob,), self._weights_version, finish))])

    def _answer_to(self, prompt_ids: list[int]) -> list[int] | None:
        """What the script still has to say after this prompt; None: nothing, so draw."""
        for prompt, answer in self._script.items():
            num_said = len(prompt_ids) - len(prompt)
            if 0 <= num_said < len(answer) and prompt_ids == [*prompt, *answer[:num_said]]:
                return list(answer[num_said:])
        return None
