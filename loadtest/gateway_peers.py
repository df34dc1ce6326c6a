"""Peers beside us: how each is started before the stub that answers at once, and how its sessions are opened.

A peer that cannot be installed or started is missing, and why is printed; nothing is made up for it.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from loadtest.gateway_child import Child
from loadtest.gateway_installs import environment_of, foreign_environment
from loadtest.gateway_load import Endpoint
from seamlessflow.bus.nats_server import free_port
from seamlessflow.errors import Unavailable

START_SECONDS = 90.0
LOCAL_ONLY = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "DO_NOT_TRACK": "1"}
"""No peer may look anything up elsewhere, or write more than errors."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How one of them is started and asked. ``{port}``, ``{stub}`` and ``{folder}`` are filled in."""

    name: str
    command: tuple[str, ...]
    health: str
    """A path that is answered when it is ready."""
    calls: str
    """The path of a session's calls; ``{session}`` is filled in."""
    records: bool = True
    """Whether it keeps tokens and logprobs of each call, as a gateway for training must."""
    python: tuple[int, int] = (3, 11)
    """At least."""


PEERS = (
    Peer(
        name="rllm-model-gateway",
        command=(
            "rllm-model-gateway",
            *("--host=127.0.0.1", "--port={port}", "--worker={stub}/ids/v1", "--store=memory", "--log-level=ERROR"),
        ),
        health="/health",
        calls="/sessions/{session}/v1/chat/completions",
    ),
    Peer(
        name="agentlightning",
        command=(
            "agl-server",
            *("host=127.0.0.1", "port={port}", "default_proxy.model_name=model"),
            *("hydra.run.dir={folder}/hydra", "hydra.output_subdir=null"),
        ),
        health="/healthz",
        calls="/proxy/rollout/{session}/attempt/0/mode/train/openai/v1/chat/completions",
        python=(3, 12),
    ),
    Peer(
        name="litellm",
        command=(
            "litellm",
            *("--host=127.0.0.1", "--port={port}", "--config={folder}/litellm.yaml", "--telemetry=False"),
        ),
        health="/health/liveliness",
        calls="/v1/chat/completions",
        records=False,
    ),
)
_LITELLM = """\
model_list:
  - model_name: model
    litellm_params: {{model: openai/model, api_base: "{stub}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


class RunningPeer:
    """One of them, started."""

    def __init__(self, peer: Peer, child: Child, url: str) -> None:
        self.name, self.records = peer.name, peer.records
        self._peer, self._child, self._url, self._count = peer, child, url, 0

    @classmethod
    async def open(cls, peer: Peer, folder: Path, stub: str) -> RunningPeer:
        """``folder``: an empty one. Raises Unavailable."""
        environment = await asyncio.to_thread(environment_of, peer.name, peer.python)
        (folder / "litellm.yaml").write_text(_LITELLM.format(stub=stub))
        port = free_port()
        program, *arguments = (part.format(port=port, stub=stub, folder=folder) for part in peer.command)
        # The access logs that two of them write by default go where nobody reads and nothing waits.
        command = ["sh", "-c", 'exec "$@" >/dev/null', "sh", str(environment / "bin" / program), *arguments]
        child = await Child.start(command, {**foreign_environment(), **LOCAL_ONLY}, folder / f"{peer.name}.log")
        running = cls(peer, child, f"http://127.0.0.1:{port}")
        try:
            await running._until_healthy()
            if peer.name == "agentlightning":
                await running._tell("/api/models", [{"model": "model", "endpoint": f"{stub}/ids/v1"}])
        except BaseException:
            await running.close()
            raise
        return running

    async def endpoints(self, count: int) -> list[Endpoint]:
        """So many new sessions."""
        names = [f"s{self._count + number}" for number in range(count)]
        self._count += count
        if self.name == "agentlightning":
            await self._tell("/api/rollouts", [{"input": {}, "rollout_id": name} for name in names])
        return [Endpoint(self._url + self._peer.calls.format(session=name), "none") for name in names]

    async def close(self) -> None:
        await self._child.stop()

    async def _until_healthy(self) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            try:
                await self._tell(self._peer.health)
                return
            except OSError:
                pass
            if not self._child.is_running or asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"{self.name} does not start; its last words: {self._child.last_words()}")
            await asyncio.sleep(0.2)

    async def _tell(self, path: str, what: object = None) -> None:
        body = None if what is None else json.dumps(what).encode()
        request = urllib.request.Request(self._url + path, body, {"Content-Type": "application/json"})
        await asyncio.to_thread(_open, request)


def _open(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
