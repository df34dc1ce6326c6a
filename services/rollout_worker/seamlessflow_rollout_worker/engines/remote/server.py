"""One server of a remote engine: what it can do, which weights it has, and whether it can take requests.

    away ──prepare──▶ tried out ──load──▶ up ──fault, other weights──▶ away (rests, longer each time) ──▶ ...

Always true: while a request runs here, the weights that it was sent to are the server's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import structlog

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import SamplingParams

from .http_client import Http, ServerFault, ServerRefusal
from .inflight_requests import Attempt, OnPiece, Requests
from .options import Api, RemoteOptions
from .probe import Meaning, Try, are_alike, neighbour, probe_prompts, try_out
from .server_apis import EARLY, Ask, CompletionsDialect, Dialect, Piece, SglangDialect, TokensDialect
from .server_control import Abilities, Control, SglangControl, VllmControl, endpoints_of

log = structlog.get_logger()

FIRST_REST_SECONDS = 0.25
LONGEST_REST_SECONDS = 5.0
"""How long a server that failed is left alone: doubled at each failure, forgotten when a request goes well."""
_DIALECTS: dict[Api, Callable[[], Dialect]] = {
    "vllm": TokensDialect,
    "completions": CompletionsDialect,
    "sglang": SglangDialect,
}


class RemoteServer:
    """See above. The fleet says when it is up; whoever meets a fault says ``fail``. on_change: called when either did."""

    def __init__(self, http: Http, options: RemoteOptions, *, vocab_size: int, on_change: Callable[[], None]) -> None:
        self.name = http.name
        self.is_up = False
        self.why_away = "not asked yet"
        self.label: str | None = None
        """Of the weights that we loaded there last. None: none, or nobody knows."""
        self.control: Control | None = None
        """None: not tried out yet."""
        self.meaning: Meaning | None = None
        self.max_context_tokens: int | None = None
        """None: it does not say."""
        self._http, self._options, self._vocab_size, self._on_change = http, options, vocab_size, on_change
        self._requests = Requests(http, _DIALECTS[options.api](), options, vocab_size=vocab_size, on_over=self._on_over)
        self._model = ""
        self._stands_still = False
        """It said so."""
        self._needs_resume = False
        """It may stand still."""
        self._rest_seconds, self._rests_until = FIRST_REST_SECONDS, 0.0
        self._clock = asyncio.get_running_loop().time

    @property
    def num_running(self) -> int:
        return len(self._requests)

    @property
    def is_resting(self) -> bool:
        return self._clock() < self._rests_until

    async def close(self) -> None:
        await self.cut_off()
        await self._http.close()

    def up(self) -> None:
        self.is_up = True
        log.info("engine.server_up", server=self.name, weights=self.label)
        self._on_change()

    def fail(self, reason: object) -> None:
        """Send it nothing until it has been looked at again."""
        if self.is_up or self.why_away != str(reason):
            log.warning("engine.server_away", server=self.name, reason=str(reason), num_running=self.num_running)
        if self.is_up or not self.is_resting:  # else it is one more request that the same failure ended
            self._rests_until = self._clock() + self._rest_seconds
            self._rest_seconds = min(2 * self._rest_seconds, LONGEST_REST_SECONDS)
        self.is_up, self.why_away = False, str(reason)
        self._on_change()

    async def look(self) -> None:
        """Raises ServerFault or ServerRefusal unless it is healthy and has the weights that we loaded."""
        expected = self.label
        await self._http.ask("GET", "/health", seconds=self._options.control_seconds)
        if expected is None or self.control is None:
            return
        told = await self.control.label()
        if told != expected and self.label == expected:  # else we changed it ourselves meanwhile
            self.label = None
            raise ServerFault(f"its weights are {told!r}, not {expected!r}: it was started anew, or somebody else changes them")

    async def prepare(self) -> Abilities:
        """Try it out; returns what it can do.

        Raises BadInput where it cannot serve any run; ServerFault or ServerRefusal where it is not there.
        """
        options = self._options
        await self._http.ask("GET", "/health", seconds=options.control_seconds)
        endpoints = await endpoints_of(self._http, seconds=options.control_seconds)
        make = SglangControl if options.api == "sglang" else VllmControl
        control = make(self._http, endpoints, options)
        if control.abilities.pauses:
            await control.resume()  # whoever was here before us may have died in between
        self._stands_still = self._needs_resume = False
        await self._read_model()
        self.meaning = await try_out(self._try, self._vocab_size)
        self.control = control
        return control.abilities

    async def try_loading(self, folder: str, swapped: str) -> None:
        """Load weights, then the same ones swapped, and see whether its answers change as they must.

        Raises BadInput where they do not; ServerFault or ServerRefusal as ``load`` does.
        """
        answers: list[list[Try]] = []
        prompts = probe_prompts(self._vocab_size)
        for where, name, is_swapped in ((folder, "try", False), (swapped, "try-swapped", True)):
            await self.load(where, f"{name}-{secrets.token_hex(4)}")
            await self.resume()
            asked = [[neighbour(each, self._vocab_size) for each in ids] for ids in prompts] if is_swapped else prompts
            answers.append([await self._try(ids, SamplingParams(0.0, 1.0, 1, ())) for ids in asked])
        if not are_alike(answers[0], answers[1], self._vocab_size):
            raise BadInput(
                f"{self.name} says that it loaded weights, and samples as if it had not, or not all of them. Does it see the "
                f"same files at {folder} (model.engine_options.path_map)? vLLM on a CPU keeps the output layer of a model with "
                "one matrix for input and output: start it with --worker-extension-cls seamlessflow_rollout_worker.engines."
                "vllm.worker_extension.LoadsFromFile (services/rollout_worker of a checkout on its PYTHONPATH), and say "
                'model.engine_options.loader = "load_from_file"'
            )

    async def load(self, folder: str, label: str) -> None:
        """Load weights; it stands still afterwards. Raises ServerFault or ServerRefusal: then nobody knows which it has."""
        assert self.control is not None
        self.label = None
        try:
            if not self._stands_still:
                await self.pause()
            await self.control.load(folder, label)
        except asyncio.CancelledError:
            self.fail("loading weights was cut short")
            raise
        self.label = label

    async def pause(self) -> None:
        """End every request; returns when all streams have ended. Raises ServerFault or ServerRefusal; they have then, too."""
        control = self.control
        if control is not None and control.abilities.pauses:
            self._needs_resume = True
            await self._requests.end_all(control.pause())
            self._stands_still = True
        elif control is not None and control.abilities.aborts:
            await self._requests.end_all(self._requests.abort_all(control.abort))
        else:
            await self._requests.end_all(None)

    async def resume(self) -> None:
        """Raises ServerFault or ServerRefusal."""
        self._stands_still = False
        if self._needs_resume and self.control is not None:
            await self.control.resume()
        self._needs_resume = False

    def begin(self, request_id: str, ids: list[int], params: SamplingParams, max_tokens: int, on_piece: OnPiece) -> Attempt:
        """Send a request; ``on_piece`` gets what it says. Ends by itself, by ``end`` or by ``pause``."""
        return self._requests.begin(Ask(request_id, ids, params, max_tokens, self.label, self._model), on_piece)

    async def end(self, attempt: Attempt) -> None:
        """End one request now; returns when nothing more will come of it."""
        aborts = self.control is not None and self.control.abilities.aborts
        await self._requests.end(attempt, self.control.abort if aborts and self.control is not None else None)

    async def cut_off(self) -> None:
        """End all requests by closing their connections."""
        await self._requests.end_all(None)

    def _on_over(self, went_well: bool) -> None:
        if went_well:
            self._rest_seconds = FIRST_REST_SECONDS
        self._on_change()

    async def _read_model(self) -> None:
        try:
            listed = await self._http.ask("GET", "/v1/models", seconds=self._options.control_seconds)
            model = listed["data"][0]
            self._model, told = str(model["id"]), model.get("max_model_len")
            self.max_context_tokens = int(told) if told else None
        except (ServerRefusal, KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
            return  # some have no such list; a server that needs the name will refuse to be tried out

    async def _try(self, prompt: list[int], params: SamplingParams) -> Try:
        ids: list[int] = []
        logprobs: list[float] = []

        def keep(piece: Piece) -> None:
            ids.extend(piece.token_ids)
            logprobs.extend(piece.logprobs)

        ask = Ask(f"try-{self._clock()}", prompt, params, params.max_tokens, None, self._model)
        try:
            async with asyncio.timeout(self._options.control_seconds):
                ending = await self._requests.stream(ask, keep)
        except TimeoutError as wrong:
            raise ServerFault(f"{params.max_tokens} tokens took too long") from wrong
        if ending in EARLY:
            raise ServerFault(EARLY[ending])
        return Try(tuple(ids), tuple(logprobs))
