"""Names from before the services were packages: each still works from a checkout, and logs the one that took its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEW = "seamlessflow_rollout_worker.engines.vllm.worker_extension"
OLD = "services.rollout_worker.engines.vllm_worker"
MODULES = ["agent_runner", "rollout_worker", "scheduler", "trainer", "trajectory_manager"]
FAKES = {
    "vllm/__init__.py": "",
    "vllm/model_executor/layers/vocab_parallel_embedding.py": "class ParallelLMHead: ...",
    "safetensors/torch.py": "def load_file(file): ...",
}
"""What the worker extension imports, without what makes it large."""


def python(*arguments: str, path: str = "", flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": path, "SEAMLESSFLOW_METRICS_PORT": "wrong"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", MODULES)
def test_a_service_starts_under_its_old_name(name):
    """As far as its settings, one of which is wrong here."""
    done = python("-m", f"services.{name}")

    assert f"services.{name} is now seamlessflow_{name}" in done.stderr
    assert "cannot start:\n  SEAMLESSFLOW_METRICS_PORT" in done.stderr
    assert done.returncode == 1


def test_a_replay_starts_under_its_old_name():
    """It is documented as a module to run."""
    done = python("-m", "services.trajectory_manager.replay", "--help")

    assert "services.trajectory_manager.replay is now seamlessflow_trajectory_manager.replay" in done.stderr
    assert "--run" in done.stdout


@pytest.mark.parametrize(("folder", "module"), [("services/rollout_worker", NEW), (".", OLD)], ids=["new", "old"])
def test_a_vllm_server_finds_the_extension_by_one_folder_on_its_path(folder, module, tmp_path):
    """Nothing of ours is installed there, nor what we require: -S leaves out all but the standard library."""
    for name, text in FAKES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = f"import sys; from {module} import LoadsFromFile; print(LoadsFromFile.__module__, 'seamlessflow' in sys.modules)"
    done = python("-c", code, path=f"{ROOT / folder}:{tmp_path}", flags=("-S", "-P"))

    assert done.stdout == f"{NEW} False\n", done.stderr
    assert done.stderr == ("" if module == NEW else f"{OLD} is now {NEW}.LoadsFromFile\n")
