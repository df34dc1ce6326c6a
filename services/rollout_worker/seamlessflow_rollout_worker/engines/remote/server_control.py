"""What a server lets be done with it besides asking for tokens: end requests, stand still, load weights, say which it has.

Found out from the endpoints that it lists (``/openapi.json``); nothing is tried that is not listed.

    vLLM    ``/pause /resume /collective_rpc /update_weight_version /weight_info``, all with ``VLLM_SERVER_DEV_MODE=1``;
            ``/inference/v1/abort_requests`` with ``--enable-scale-out``
    SGLang  ``/pause_generation /continue_generation /update_weights_from_disk /abort_request``, always
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from seamlessflow.errors import BadInput
from seamlessflow.weights import WEIGHTS_FILE

from .http_client import Http, ServerFault, ServerRefusal
from .options import RemoteOptions
from .probe import Meaning, is_exact


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a server can do; each absence has a way around it, or refuses a run."""

    aborts: bool
    """False: its connection is closed instead, and what it sampled and did not send yet is sampled again."""
    pauses: bool
    """False: every request is ended instead, and nothing new is sent."""
    updates: bool
    """False: only for a fixed model. True takes pausing and telling its version, too."""


class Control(Protocol):
    """Orders to one kind of server. Each raises ServerFault or ServerRefusal."""

    @property
    def abilities(self) -> Abilities: ...
    async def abort(self, names: list[str]) -> None: ...
    async def pause(self) -> None:
        """End every request that runs there, which gets what was sampled; those that come later wait."""
        ...

    async def resume(self) -> None: ...
    async def load(self, folder: str, label: str) -> None:
        """Load the safetensors of a folder while paused, forget every cached prefix, and bear ``label`` from then on."""
        ...

    async def label(self) -> str | None:
        """The label of the weights it has: of ours, or whatever it says after it was started anew."""
        ...


async def endpoints_of(http: Http, *, seconds: float) -> frozenset[str]:
    """The paths a server lists; none where it has no such list. Raises ServerFault."""
    try:
        listed = await http.ask("GET", "/openapi.json", seconds=seconds)
    except ServerRefusal:
        return frozenset()
    paths = listed.get("paths") if isinstance(listed, dict) else None
    return frozenset(paths if isinstance(paths, dict) else ())


class VllmControl:
    """Orders to ``vllm serve``."""

    def __init__(self, http: Http, endpoints: Collection[str], options: RemoteOptions) -> None:
        self._http, self._options = http, options
        self._abort_path = next((p for p in ("/inference/v1/abort_requests", "/abort_requests") if p in endpoints), None)
        pauses = {"/pause", "/resume"} <= set(endpoints)
        loads = {"/collective_rpc", "/update_weight_version", "/weight_info"} <= set(endpoints)
        self.abilities = Abilities(aborts=self._abort_path is not None, pauses=pauses, updates=pauses and loads)

    async def abort(self, names: list[str]) -> None:
        assert self._abort_path is not None
        await self._order(self._abort_path, {"request_ids": names})

    async def pause(self) -> None:
        query = {"mode": "abort", "clear_cache": "true"}
        await self._http.ask("POST", "/pause", seconds=self._options.control_seconds, query=query)

    async def resume(self) -> None:
        await self._order("/resume")

    async def load(self, folder: str, label: str) -> None:
        order: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        if self._options.loader == "load_from_file":
            order = {"method": "load_from_file", "args": [f"{folder}/{WEIGHTS_FILE}"]}
        await self._http.ask("POST", "/collective_rpc", seconds=self._options.load_seconds, json_body=order)
        await self._order("/update_weight_version", {"new_version": label})

    async def label(self) -> str | None:
        told = await self._http.ask("GET", "/weight_info", seconds=self._options.control_seconds)
        return told.get("weight_version") if isinstance(told, dict) else None

    async def _order(self, path: str, body: object = None) -> None:
        await self._http.ask("POST", path, seconds=self._options.control_seconds, json_body=body)


class SglangControl:
    """Orders to an SGLang server."""

    def __init__(self, http: Http, endpoints: Collection[str], options: RemoteOptions) -> None:
        self._http, self._options = http, options
        self._info_path = next((p for p in ("/model_info", "/get_model_info") if p in endpoints), None)
        pauses = {"/pause_generation", "/continue_generation"} <= set(endpoints)
        loads = self._info_path is not None and {"/update_weights_from_disk", "/flush_cache"} <= set(endpoints)
        self.abilities = Abilities(aborts="/abort_request" in endpoints, pauses=pauses, updates=pauses and loads)

    async def abort(self, names: list[str]) -> None:
        for name in names:
            await self._order("/abort_request", {"rid": name})

    async def pause(self) -> None:
        await self._order("/pause_generation", {"mode": "abort"})

    async def resume(self) -> None:
        await self._order("/continue_generation", {})

    async def load(self, folder: str, label: str) -> None:
        order = {"model_path": folder, "weight_version": label}
        told = await self._http.ask("POST", "/update_weights_from_disk", seconds=self._options.load_seconds, json_body=order)
        if not (isinstance(told, dict) and told.get("success")):
            raise ServerFault(f"/update_weights_from_disk: {told}")
        await self._order("/flush_cache", {})  # an answer other than 200 is an error

    async def label(self) -> str | None:
        assert self._info_path is not None
        told = await self._http.ask("GET", self._info_path, seconds=self._options.control_seconds)
        return told.get("weight_version") if isinstance(told, dict) else None

    async def _order(self, path: str, body: object = None) -> Any:
        return await self._http.ask("POST", path, seconds=self._options.control_seconds, json_body=body)


# What a run needs of a server, and the words that refuse one which does not have it. Pure.


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a run. Evaluation is greedy, where every meaning of a logprob is the same."""

    temperature: float
    top_p: float
    fixed_model: bool
    """Its weights are not to change."""

    def check(self, server: str, abilities: Abilities, meaning: Meaning | None) -> None:
        """Raises BadInput where the run cannot be sampled for by this server, saying what would help."""
        if not (self.fixed_model or abilities.updates):
            raise BadInput(
                f"{server} cannot load weights, so the run would learn from a model that stays as it is. vllm needs "
                "VLLM_SERVER_DEV_MODE=1 (in a network of its own: that opens endpoints which ask for no key). Where a fixed "
                "model is meant, say model.engine_options.fixed_model = true"
            )
        if not is_exact(meaning, self.temperature, self.top_p):
            of = f"of the distribution {meaning}" if meaning else "of a distribution that could not be found out"
            raise BadInput(
                f"{server}: its logprobs are {of}; the run samples at temperature {self.temperature:g} and top_p "
                f"{self.top_p:g} and needs those after temperature, before top-p. vllm: sampling.temperature = 1 with its "
                "default --logprobs-mode, or sampling.top_p = 1 with processed_logprobs"
            )
