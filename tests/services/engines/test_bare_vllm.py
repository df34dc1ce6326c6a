"""The bare vLLM of a benchmark: killed, it leaves none of vLLM's processes behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; ./task test:vllm runs these tests")

import psutil

from loadtest.gateway_child import Child
from loadtest.run_rig import interpreter_environment, run_document
from seamlessflow.config.run import parse_run_config
from seamlessflow.models import make_tiny

pytestmark = pytest.mark.vllm


async def test_a_bare_vllm_that_is_killed_leaves_nobody(tmp_path: Path) -> None:
    """Its EngineCore would sample, and hold memory, for whoever comes next."""
    folder = make_tiny(tmp_path / "model", 0, warm_start_steps=1)
    config = parse_run_config(run_document(folder, engine="vllm", slots=2, context=64))
    bare = await Child.start([sys.executable, "-m", "loadtest.bare_engine"], interpreter_environment(1), tmp_path / "bare.log")
    await bare.told(config.model_dump(mode="json", exclude_none=True))
    told = await bare.told({"requests": [{"name": "a", "prompt": [9, 10], "max_tokens": 4, "stream": True}], "in_flight": 1})
    family = psutil.Process(bare.pid).children(recursive=True)

    psutil.Process(bare.pid).kill()
    _, alive = psutil.wait_procs(family, timeout=20)

    assert told["tokens"] == 4 and len(family) >= 2 and not alive
    await bare.stop()
