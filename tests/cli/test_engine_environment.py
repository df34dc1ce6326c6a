"""Rollout-workers whose engine lives in an environment of its own run there, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seamlessflow.cli.preflight import check_engine
from seamlessflow.config.run import parse_run_config
from seamlessflow.errors import ConfigError
from seamlessflow.local import services
from seamlessflow.local.services import VLLM_PYTHON, Machine, interpreter_of, service_children


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without vLLM anywhere."""
    monkeypatch.setattr(services, "checkout_root", lambda: tmp_path)
    monkeypatch.setattr(services.importlib.util, "find_spec", lambda name: None if name == "vllm" else object())
    return tmp_path


def a_run(engine: str):
    return parse_run_config(
        {
            "model": {"name": "tiny-calculator", "engine": engine},
            "agents": [{"env": "e", "entrypoint": "a:b"}],
            "algorithm": {"steps": 1},
        }
    )


def interpreters(checkout: Path, engine: str) -> dict[str, str]:
    folder = Machine("nats://x", "file:///x", checkout, checkout)
    return {child.name: child.argv[0] for child in service_children(folder, slices=2, engine=engine)}


def test_without_the_environment_a_run_is_refused_with_the_command_that_makes_it(checkout: Path) -> None:
    """Before anything starts, in one line that can be copied; other engines need none."""
    check_engine(a_run("transformers"))
    with pytest.raises(ConfigError, match=r"\./task setup:vllm makes it"):
        check_engine(a_run("vllm"))
    with pytest.raises(ConfigError, match=r"\.venv-vllm"):
        interpreters(checkout, "vllm")


def test_only_rollout_workers_run_in_it(checkout: Path) -> None:
    """The trainer and the others keep the versions they were tested with."""
    python = checkout / VLLM_PYTHON
    python.parent.mkdir(parents=True)
    python.touch()
    with pytest.raises(ConfigError, match=r"\./task setup:vllm"):
        interpreter_of("vllm")  # its making was interrupted
    vllm = python.parents[1] / "lib" / "python3.11" / "site-packages" / "vllm" / "__init__.py"
    vllm.parent.mkdir(parents=True)
    vllm.touch()

    assert set(interpreters(checkout, "transformers").values()) == {sys.executable}
    found = interpreters(checkout, "vllm")
    assert {name for name, interpreter in found.items() if interpreter == str(python)} == {
        "rollout-worker-0", "rollout-worker-1",
    }  # fmt: skip
    assert set(found.values()) == {str(python), sys.executable}


def test_vllm_beside_us_will_do(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU everything may live in one environment."""
    monkeypatch.setattr(services.importlib.util, "find_spec", lambda name: object() if name == "vllm" else None)
    assert interpreter_of("vllm") == Path(sys.executable)


def test_a_service_that_is_not_installed_is_named_with_what_installs_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts; a rollout-worker that runs in another interpreter is installed there."""
    gone = {"seamlessflow_rollout_worker", "seamlessflow_trainer", "vllm"}
    monkeypatch.setattr(services.importlib.util, "find_spec", lambda name: None if name in gone else object())
    with pytest.raises(ConfigError, match=r'seamlessflow-rollout-worker, seamlessflow-trainer not .* "seamlessflow\[all\]"'):
        check_engine(a_run("transformers"))

    vllm = checkout / VLLM_PYTHON.parents[1] / "lib" / "python3.11" / "site-packages" / "vllm" / "__init__.py"
    for file in (vllm, checkout / VLLM_PYTHON):
        file.parent.mkdir(parents=True)
        file.touch()
    with pytest.raises(ConfigError, match=r"^seamlessflow-trainer not installed"):
        check_engine(a_run("vllm"))
