"""An engine on servers that already run: vLLM's or SGLang's, over HTTP, several of them as one.

    generate ──▶ Job ──▶ Fleet (which server) ──▶ RemoteServer ──▶ HTTP
    pause, load_weights, resume ──▶ Fleet ──▶ every server

Versions are exact by construction: a pause ends what runs (by the server's own order where it has one) and returns when
every stream has ended; requests go on behind their last token afterwards, with the new weights, from the first token of
their prompt computed by them. What is paid for that is prefilling again (docs/adr/0014-engines-that-already-run.md).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from seamlessflow.errors import BadInput, ConfigError
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.safetensors_file import map_tensors
from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, SamplingParams, stops_within
from seamlessflow_rollout_worker.engines.open_requests import ALREADY_RUNNING, NOT_PAUSED, NOT_RUNNING, EngineFront
from seamlessflow_rollout_worker.engines.weights_staging import model_config, text_config

from .http_client import Http
from .options import RemoteOptions
from .request_attempts import Gate, Job
from .server import RemoteServer
from .server_control import Needs
from .server_pool import Fleet, Version

# What a remote engine knows of the run's model, from its folder: how large its vocabulary is, and which tensors it has.


Layout = dict[str, tuple[str, tuple[int, ...]]]
"""dtype and shape of each tensor, by name."""


def vocab_size_of(model_dir: Path) -> int:
    """Raises BadInput where config.json does not say it."""
    told = text_config(model_config(model_dir)).get("vocab_size")
    if not isinstance(told, int):
        raise BadInput(f"config.json of {model_dir.name} does not say how large the vocabulary is.")
    return told


def layout_of(file: Path) -> Layout:
    """Of a safetensors file, from its header. Blocks. Raises BadInput."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in map_tensors(file).items()}


def refuse_other(expected: Layout, given: Layout, file: Path) -> None:
    """Raises BadInput: a server would load what fits, and say no more than a line in its log about the rest."""
    if wrong := sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name)):
        name = wrong[0]
        raise BadInput(
            f"{file.name}: {len(wrong)} tensors are not the model's; {name}: expected {expected.get(name, 'none')}, "
            f"got {given.get(name, 'none')}. Nothing was loaded."
        )


log = structlog.get_logger()


class RemoteEngine(EngineFront):
    """Implements ``Engine``; see there for the promises, and ``remote_needs`` for what is asked of servers.

    urls: of the servers, this worker's alone. temperature, top_p: of the run's training. api_key: sent with every request.
    num_slots: requests in flight, over all servers. A seed repeats a draw for the same beginning; continued elsewhere it
    repeats it only where servers draw by seed and position (SGLang's deterministic inference).
    """

    def __init__(
        self,
        urls: Sequence[str],
        options: RemoteOptions,
        *,
        temperature: float,
        top_p: float,
        api_key: str | None = None,
        num_slots: int = 64,
        max_context_tokens: int = 2048,
    ) -> None:
        super().__init__(num_slots=num_slots, max_context_tokens=max_context_tokens)
        if not urls:
            raise ConfigError(
                'engine = "remote" needs servers: set SEAMLESSFLOW_ENGINE_URLS=http://host:8000,... for this worker'
            )
        self._urls, self._options, self._api_key = tuple(urls), options, api_key
        self._needs = Needs(temperature, top_p, options.fixed_model)
        self._most_context_tokens = max_context_tokens
        self._fleet: Fleet | None = None
        self._jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        """Raises EngineError where no server is there within ``start_seconds``."""
        if self._fleet is not None:
            raise EngineError(ALREADY_RUNNING)
        self._vocab_size = vocab_size_of(model_dir)
        self._layout = None if self._options.fixed_model else await asyncio.to_thread(layout_of, model_dir / WEIGHTS_FILE)
        self._life = secrets.token_hex(4)
        self._slots = asyncio.Semaphore(self._num_slots)
        self._gate = Gate(asyncio.Event(), weights_version)
        self._gate.awake.set()
        self._weights_version = weights_version
        self._fleet = fleet = self._made(Version(model_dir, self._label(weights_version)))
        await fleet.start()
        self._max_context_tokens = fleet.max_context_tokens

    async def stop(self) -> None:
        fleet, self._fleet = self._fleet, None
        if fleet is None:
            return
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await fleet.stop()
        self._outbox.interrupt_all(self._weights_version)

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        fleet = self._alive()
        if not fleet.records(params.temperature, params.top_p):
            raise BadInput(
                f"The servers' logprobs are of another meaning at temperature {params.temperature:g}, top_p {params.top_p:g}."
            )
        ticket, box = self._admit(request_id, prompt_ids, params, vocab_size=self._vocab_size)

        def deliver(chunk: Chunk) -> None:
            self._outbox.deliver([(ticket, chunk)])

        job = Job(
            fleet,
            self._gate,
            deliver,
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=replace(params, stop_token_ids=stops_within(params, self._vocab_size)),
            patience_seconds=self._options.patience_seconds,
        )

        async def run() -> None:
            try:
                async with self._slots:
                    await job.run()
            except (EngineError, BadInput) as failure:
                box.fail(failure)
            except Exception as wrong:  # a mistake of ours must not leave a reader waiting
                log.error("engine.request_failed", request=request_id, exc_info=wrong)
                box.fail(EngineError(f"Request {request_id} failed with {wrong!r}."))

        task = asyncio.create_task(run())
        self._jobs[ticket], self._tasks[ticket] = job, task
        task.add_done_callback(lambda _: self._forget(ticket))
        try:
            async for chunk in box:
                yield chunk
        finally:
            if not job.is_finished:
                task.cancel()
            self._outbox.close(request_id)

    async def interrupt(self, request_id: str) -> None:
        ticket = self._outbox.ticket_of(request_id)
        job = self._jobs.get(-1 if ticket is None else ticket)
        if job is not None and ticket is not None:
            await job.end()
            if (task := self._tasks.get(ticket)) is not None:
                task.cancel()

    async def pause(self) -> None:
        fleet = self._alive()
        self._gate.awake.clear()
        await fleet.pause()

    async def resume(self) -> None:
        fleet = self._alive()
        await fleet.resume()
        self._gate.awake.set()

    async def stage_weights(self, file: Path) -> None:
        """Look at the file's header: servers read the rest themselves, when they are told to."""
        self._alive()
        if self._layout is None:
            raise BadInput(
                "model.engine_options.fixed_model = true: the servers' weights stay what they are. Nothing was loaded."
            )
        refuse_other(self._layout, await asyncio.to_thread(layout_of, file), file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        """BadInput, too, where no server could load it: each is loaded with the old version again before it samples."""
        fleet = self._alive()
        if self._gate.awake.is_set():
            raise EngineError(NOT_PAUSED)
        await self.stage_weights(file)
        await fleet.load(Version(file.parent, self._label(weights_version)))
        self._weights_version = self._gate.weights_version = weights_version

    def _made(self, version: Version) -> Fleet:
        changed = asyncio.Event()
        servers = [
            RemoteServer(
                Http(url, self._api_key, connect_seconds=self._options.connect_seconds),
                self._options,
                vocab_size=self._vocab_size,
                on_change=changed.set,
            )
            for url in self._urls
        ]
        return Fleet(
            servers,
            self._options,
            self._needs,
            version,
            changed,
            vocab_size=self._vocab_size,
            max_context_tokens=self._most_context_tokens,
        )

    def _label(self, weights_version: int) -> str:
        """A name no other worker, run or life gives its weights: caches at the servers are kept apart by it."""
        return f"{self._life}-{weights_version}"

    def _alive(self) -> Fleet:
        if self._fleet is None:
            raise EngineError(NOT_RUNNING)
        return self._fleet

    def _forget(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)
        self._tasks.pop(ticket, None)
