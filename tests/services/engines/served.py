"""Servers for the remote engine's tests: a ScriptedEngine behind vLLM's or SGLang's HTTP endpoints, as these are documented.

Small and real: sampling, aborting, pausing and loading are the ScriptedEngine's. What a real server does otherwise than ours
does is done here as there: logprobs of another meaning, weights that have a name, prefix caches nobody sees, a restart that
brings the first weights back. ``faults`` makes it misbehave, one entry for each request for tokens.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import Chunk, Engine, EngineError, Finish, SamplingParams
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine

KEY = "a-key-of-the-test"


class Served:
    """One server. api: "vllm", "completions" or "sglang". meaning: of its logprobs, a name of ``Meaning``.

    is_dev: vLLM's switch. repeats: SGLang's events hold the whole answer. needs_key: refuses requests without KEY.
    engine: what samples, begun with the model in folder; default: a ScriptedEngine.
    """

    def __init__(
        self,
        api: str,
        *,
        vocab_size: int,
        num_slots: int = 64,
        max_context_tokens: int = 4096,
        seconds_per_token: float = 0.0,
        meaning: str = "TEMPERED",
        is_dev: bool = True,
        repeats: bool = True,
        needs_key: bool = False,
        engine: Engine | None = None,
        folder: Path = Path("unused"),
    ) -> None:
        self.api, self.meaning, self.is_dev, self.repeats, self.needs_key = api, meaning, is_dev, repeats, needs_key
        self.faults: list[str] = []
        self.asked: list[dict[str, Any]] = []
        """Bodies of all requests for tokens."""
        self.orders: list[str] = []
        """Paths of everything else that was posted."""
        self.load_fails = False
        self.hangs_at = ""
        """An order that is never answered."""
        self.max_context_tokens, self._vocab_size = max_context_tokens, vocab_size
        self._engine: Engine = engine or ScriptedEngine(
            vocab_size=vocab_size,
            num_slots=num_slots,
            max_context_tokens=max_context_tokens,
            seconds_per_token=seconds_per_token,
        )
        self._folder = folder
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def num_asked(self) -> int:
        return len(self.asked)

    async def start(self) -> None:
        await self._engine.start(self._folder, weights_version=0)
        self.label = "default"
        self._awake = asyncio.Event()
        self._awake.set()
        self._running: dict[str, str] = {}
        app = web.Application(client_max_size=1 << 24)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    def sample_at(self, *, seconds_per_token: float) -> None:
        """Another pace from now on. Of a ScriptedEngine."""
        assert isinstance(self._engine, ScriptedEngine)
        self._engine._seconds_per_token = seconds_per_token

    async def die(self) -> None:
        """As by kill -9: connections break, weights are forgotten. ``start`` begins another life at the same address."""
        for connection in list(self._runner.server.connections):  # type: ignore[union-attr]
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        await self._engine.stop()

    def _routes(self) -> list[web.RouteDef]:
        posts: dict[str, Any] = {}
        if self.api == "sglang":
            posts = {
                "/generate": self._sglang_generate,
                "/pause_generation": self._pause,
                "/continue_generation": self._resume,
                "/abort_request": self._abort,
                "/update_weights_from_disk": self._sglang_load,
                "/flush_cache": self._yes,
            }
        else:
            generate = {"/inference/v1/generate": self._vllm_generate} if self.api == "vllm" else {}
            posts = {"/v1/completions": self._completions, **generate}
            if self.is_dev:
                posts |= {
                    "/pause": self._pause,
                    "/resume": self._resume,
                    "/abort_requests": self._abort,
                    "/collective_rpc": self._vllm_load,
                    "/update_weight_version": self._vllm_name,
                }
        gets = {"/health": self._yes, "/v1/models": self._models, "/openapi.json": self._openapi}
        if self.api == "sglang":
            gets["/get_model_info"] = self._info
        elif self.is_dev:
            gets["/weight_info"] = self._info
        self._listed = {path: {} for path in (*posts, *gets)}
        return [web.post(p, self._guarded(h)) for p, h in posts.items()] + [
            web.get(p, self._guarded(h)) for p, h in gets.items()
        ]

    def _guarded(self, handler: Any) -> Any:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if self.needs_key and request.path != "/health" and request.headers.get("Authorization") != f"Bearer {KEY}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            if request.method == "POST" and not request.path.endswith(("/generate", "/completions")):
                self.orders.append(request.path)
            if self.hangs_at == request.path:
                await asyncio.sleep(3600)
            return await handler(request)

        return guarded

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _yes(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted", "max_model_len": self.max_context_tokens}]})

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response({"paths": self._listed})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _pause(self, request: web.Request) -> web.Response:
        """Mode abort: what runs is ended and reported, what comes waits."""
        self._awake.clear()
        await self._end(list(self._running.values()))
        await self._engine.pause()
        await asyncio.sleep(0.02)  # as vLLM does: what it ended is said before this is
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        self._awake.set()
        return web.json_response({"status": "resumed"})

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        names = [body["rid"]] if self.api == "sglang" else body.get("request_ids") or list(self._running)
        await self._end([self._running[name] for name in names if name in self._running])
        return web.Response()

    async def _end(self, ids: list[str]) -> None:
        for each in ids:
            await self._engine.interrupt(each)

    async def _load(self, folder: str) -> str | None:
        """What is wrong with it, if anything."""
        if self.load_fails:
            return "out of memory"
        try:
            await self._engine.load_weights(Path(folder) / "model.safetensors", weights_version=0)
        except (BadInput, EngineError) as wrong:
            return str(wrong)
        return None

    async def _vllm_load(self, request: web.Request) -> web.Response:
        body = await request.json()
        folder = body["kwargs"]["weights_path"] if body["method"] == "reload_weights" else str(Path(body["args"][0]).parent)
        if wrong := await self._load(folder):
            return web.json_response({"error": {"message": wrong}}, status=500)
        return web.json_response({"results": [None]})

    async def _vllm_name(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    async def _sglang_load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if wrong := await self._load(body["model_path"]):
            return web.json_response({"success": False, "message": wrong}, status=400)
        self.label = body["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded.", "num_paused_requests": 0})

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def _vllm_generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        drawing = body["sampling_params"]
        name = f"generate-tokens-{request.headers.get('X-Request-Id', body['request_id'])}"
        assert drawing["logprobs"] == 0 and drawing["ignore_eos"]

        def event(ids: list[int], logprobs: list[float], sofar: int, finish: str | None) -> dict[str, Any]:
            content = [{"token_id": i, "logprob": p, "top_logprobs": []} for i, p in zip(ids, logprobs, strict=True)]
            spans = [{"version": self.label, "start": 0, "end": sofar}] if finish else None
            choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish}
            return {"request_id": name, "choices": [{**choice, "weight_versions": spans}]}

        return await self._answer(request, body, name, body["token_ids"], drawing, drawing["max_tokens"], event)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = f"cmpl-{request.headers.get('X-Request-Id', body['request_id'])}-0"
        assert body["return_token_ids"] and body["model"] == "scripted"

        def event(ids: list[int], logprobs: list[float], sofar: int, finish: str | None) -> dict[str, Any]:
            choice = {"index": 0, "text": "x" * len(ids), "token_ids": ids, "finish_reason": finish}
            return {"id": name, "choices": [{**choice, "logprobs": {"token_logprobs": logprobs}}]}

        return await self._answer(request, body, name, body["prompt"], body, body["max_tokens"], event)

    async def _sglang_generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        drawing = body["sampling_params"]
        pairs: list[tuple[float, int, None]] = []

        def event(ids: list[int], logprobs: list[float], sofar: int, finish: str | None) -> dict[str, Any]:
            fresh = [(p, i, None) for i, p in zip(ids, logprobs, strict=True)]
            pairs.extend(fresh)
            told = {
                "id": body["rid"],
                "finish_reason": {"type": finish} if finish else None,
                "output_token_logprobs": pairs if self.repeats else fresh,
                "output_token_logprobs_length": len(pairs),
                "completion_tokens": len(pairs),
            }
            return {"text": "", "output_ids": [pair[1] for pair in pairs], "meta_info": told}

        assert body["return_logprob"]
        seed = drawing.get("sampling_seed")
        return await self._answer(
            request, body, body["rid"], body["input_ids"], {**drawing, "seed": seed}, drawing["max_new_tokens"], event
        )

    async def _answer(
        self,
        request: web.Request,
        body: dict[str, Any],
        name: str,
        ids: list[int],
        drawing: dict[str, Any],
        budget: int,
        event: Any,
    ) -> web.StreamResponse:
        self.asked.append(body)
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdigit():
            return web.json_response({"error": {"message": "injected"}}, status=int(fault))
        params = SamplingParams(
            drawing["temperature"], drawing["top_p"], budget, tuple(drawing["stop_token_ids"]), drawing.get("seed")
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if fault == "hang":
            await asyncio.sleep(3600)
        while fault == "ping":
            await response.write(b": ping\n\n")
            await asyncio.sleep(0.02)
        events = self._events(name, list(ids), params, event)
        try:
            num = 0
            async for each in events:
                num += 1
                data = f"data: {json.dumps(_spoiled(each, fault) if num > 1 or fault == 'no_logprobs' else each)}\n\n".encode()
                if fault in ("cut", "eof") and num == 3:
                    if fault == "cut":
                        await response.write(data[: len(data) // 2])
                    return response
                await response.write(data)
            await response.write(b"data: [DONE]\n\n")
        except ConnectionResetError:
            pass  # who asked went away: the request ends
        finally:
            await events.aclose()
        return response

    async def _events(self, name: str, ids: list[int], params: SamplingParams, event: Any) -> AsyncIterator[dict[str, Any]]:
        sofar = 0
        inner = f"{name}#{self.num_asked}"
        self._running[name] = inner
        try:
            await self._awake.wait()
            async for chunk in self._engine.generate(inner, list(ids), params):
                logprobs = self._logprobs(ids, chunk, params)
                ids += chunk.token_ids
                sofar += len(chunk.token_ids)
                finish = "abort" if chunk.finish is Finish.INTERRUPTED else chunk.finish and str(chunk.finish)
                if self.api == "completions" and not sofar:
                    continue  # vLLM says nothing of one that was aborted before its first token
                yield event(list(chunk.token_ids), logprobs, sofar, finish)
        finally:
            self._running.pop(name, None)

    def _logprobs(self, ids: list[int], chunk: Chunk, params: SamplingParams) -> list[float]:
        """In this server's meaning."""
        if self.meaning == "TEMPERED" or params.temperature == 0.0:
            return list(chunk.logprobs)
        before = [*ids, *chunk.token_ids]
        assert isinstance(self._engine, ScriptedEngine)
        policy = self._engine._policy
        assert policy is not None
        told = []
        for place, token in enumerate(chunk.token_ids, len(ids)):
            if self.meaning == "RAW":
                told.append(policy.logprobs_after(before[place - 1], 1.0)[token])
                continue
            logprobs = policy.logprobs_after(before[place - 1], params.temperature)
            kept, mass = [], 0.0
            for each in sorted(logprobs, reverse=True):
                if kept and mass >= params.top_p:
                    break
                kept.append(each)
                mass += math.exp(each)
            told.append(logprobs[token] - math.log(mass))
        return told


def _spoiled(event: dict[str, Any], fault: str) -> dict[str, Any]:
    """The event with what ``fault`` does to it."""
    told = event.get("meta_info") or event["choices"][0]
    match fault:
        case "error":
            return {"error": {"message": "injected"}}
        case "no_ids":
            told.pop("token_ids", None)
            told.pop("output_token_logprobs", None)
            told["text"] = "x"
        case "no_logprobs":
            told["logprobs"] = None
            told["output_token_logprobs"] = None
        case "nan":
            if "output_token_logprobs" in told:
                told["output_token_logprobs"] = [(float("nan"), pair[1], None) for pair in told["output_token_logprobs"]]
            elif "content" in told["logprobs"]:
                told["logprobs"]["content"] = [{**each, "logprob": float("nan")} for each in told["logprobs"]["content"]]
            else:
                told["logprobs"]["token_logprobs"] = [float("nan")] * len(told["logprobs"]["token_logprobs"])
    return event
