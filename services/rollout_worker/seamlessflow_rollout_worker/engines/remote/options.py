"""What a run file may say about engines that already run: ``[model.engine_options]`` with ``engine = "remote"``.

Where the servers are is no matter of the run: each worker is told by ``SEAMLESSFLOW_ENGINE_URLS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seamlessflow.errors import ConfigError

PositiveFloat = Annotated[float, Field(gt=0)]
Api = Literal["vllm", "completions", "sglang"]


class RemoteOptions(BaseModel):
    """Unknown keys are typing mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    api: Api = "vllm"
    """How the servers are asked for tokens. vllm: ``/inference/v1/generate`` (``vllm serve --enable-scale-out``).
    completions: ``/v1/completions`` with ``return_token_ids``. sglang: ``/generate``."""
    fixed_model: bool = False
    """True: the servers' weights stay what they are, and every token is stamped with the version the worker began with. For
    evaluating, or for training on what a fixed model samples. False: servers that cannot load weights are refused."""
    path_map: dict[str, str] = {}
    """Where servers see the worker's folders: beginning of a path here -> beginning of it there. The longest one that fits
    counts. Empty: they see the same paths."""
    loader: Literal["reload_weights", "load_from_file"] = "reload_weights"
    """What vLLM's workers are told to load weights with. reload_weights: vLLM's own. load_from_file: ours, which servers on a
    CPU need for models with one matrix for input and output; they are started with
    ``--worker-extension-cls seamlessflow_rollout_worker.engines.vllm.worker_extension.LoadsFromFile`` then."""
    tries_loading: bool = True
    """Whether each server is given weights that must change its answers in a known way, before it serves: costs two loads for
    each server, and room for one more copy of the weights. False: what a server says is believed."""
    connect_seconds: PositiveFloat = 5.0
    """A server that takes no connection for this long is away."""
    silence_seconds: PositiveFloat = 120.0
    """A request that nothing comes from for this long is given up there, and goes on at another server. Waiting for a place
    in the server's queue counts."""
    cut_seconds: PositiveFloat = 2.0
    """How long a server may take to end what runs there, before its connections are closed instead."""
    load_seconds: PositiveFloat = 110.0
    """How long a server may take to load weights; less than the worker's own limit of 120 s."""
    control_seconds: PositiveFloat = 30.0
    """The same for every other order: pause, resume, abort, telling its version, the requests that try it out."""
    health_seconds: PositiveFloat = 1.0
    """How often each server is looked at. Shorter than any server takes to start, so that a restart is not overlooked."""
    start_seconds: PositiveFloat = 120.0
    """How long a worker waits at its start until at least one server is there."""
    patience_seconds: PositiveFloat = 60.0
    """How long a request may get no token while no server can take it. Then the worker ends, and its supervisor starts
    another one; what it held goes back to the queue."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RemoteOptions:
        """Raises ConfigError that names each key and what is wrong with it."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as wrong:
            reasons = "; ".join(
                f"model.engine_options.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong.errors()
            )
            raise ConfigError(f'engine = "remote": {reasons}. Keys: {", ".join(sorted(cls.model_fields))}') from wrong

    def path_there(self, here: Path) -> str:
        """The path by which servers find a folder of ours."""
        for begin in sorted(self.path_map, key=len, reverse=True):
            if here.is_relative_to(begin):
                return str(PurePosixPath(self.path_map[begin]) / here.relative_to(begin))
        return str(here)
