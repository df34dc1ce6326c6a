"""Which engine a run gets, and what it may not ask of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seamlessflow.config.run import parse_run_config
from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.engines.factory import build_engine, dtype_of
from seamlessflow_rollout_worker.engines.vllm.engine import VllmEngine


def a_run(**model: object):
    return parse_run_config(
        {
            "model": {"name": "tiny-calculator"} | model,
            "agents": [{"env": "e", "entrypoint": "a:b"}],
            "algorithm": {"steps": 1},
            "fleet": {"slots": 5},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 32, "dtype": "float32"}))
    return tmp_path


@pytest.mark.parametrize("engine", ["scripted", "transformers", "continuous_batching"])
def test_options_of_an_engine_that_takes_none_are_refused(folder: Path, engine: str) -> None:
    """They would be ignored, and the run would not be what its file says."""
    with pytest.raises(BadInput, match=f"the engine {engine} takes none"):
        build_engine(a_run(engine=engine, engine_options={"tensor_parallel_size": 2}), WorkerSettings(), folder)


def test_vllm_is_built_without_vllm(folder: Path) -> None:
    """It is imported where the engine starts, in the worker that has it; slots and context are the run's."""
    run = a_run(engine="vllm", engine_options={"tensor_parallel_size": 2}, max_context_tokens=77)
    engine = build_engine(run, WorkerSettings(), folder)

    assert isinstance(engine, VllmEngine)
    assert (engine.num_slots, engine.max_context_tokens) == (5, 77)


@pytest.mark.parametrize(
    ("named", "wanted", "served"),
    [
        ("float32", "auto", "float32"),
        ("float16", "auto", "float16"),
        ("bfloat16", "float32", "float32"),
        (None, "auto", "float32"),
        ("float8_e4m3fn", "auto", "bfloat16"),
    ],
)
def test_an_engine_serves_what_the_trainer_publishes(tmp_path: Path, named: str | None, wanted: str, served: str) -> None:
    """The model's own precision unless the run names one: versions of another dtype are refused when they are read."""
    (tmp_path / "config.json").write_text(json.dumps({"dtype": named} if named else {}))

    assert dtype_of(a_run(dtype=wanted), tmp_path) == served
