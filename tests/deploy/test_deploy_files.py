"""What is deployed: an image with one service, a compose file whose names exist, tasks that are there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from seamlessflow.config.settings import Settings
from seamlessflow.contracts import Service
from seamlessflow.contracts.export.nkeys import key_lines
from seamlessflow.contracts.export.permissions import SERVICES

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
LIBRARY = tomllib.loads((ROOT / "shared/pyproject.toml").read_text())["project"]
FIVE = pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.value)


def folder_of(service: Service) -> str:
    return service.value.replace("-", "_")


def pick_with_the_dockerfile(service: Service, target: Path) -> None:
    """Run the Dockerfile's own command that picks a service, with folders of ours instead of the image's."""
    (command,) = re.findall(r"^RUN (set -eu;(?:.*\\\n)*.*)$", DOCKERFILE, flags=re.MULTILINE)
    shell = command.replace("\\\n", "").replace("/picked/", f"{target}/").replace("/services", str(ROOT / "services"))
    shell = shell.replace(f"{target}{ROOT / 'services'}", f"{target}/services")
    subprocess.run(["/bin/sh", "-c", shell], env={"SERVICE": service.value, "PATH": "/usr/bin:/bin"}, check=True)


@FIVE
def test_an_image_holds_one_service_and_it_imports(service, tmp_path):
    """The folder of one service and the library suffice: whatever it needs of another service would be missing here."""
    pick_with_the_dockerfile(service, tmp_path)
    shutil.copytree(ROOT / "shared", tmp_path / "shared", ignore=shutil.ignore_patterns("__pycache__"))
    assert [path.name for path in (tmp_path / "services").iterdir()] == [folder_of(service)]

    code = (
        "import importlib, importlib.util, seamlessflow;"
        f"m = importlib.import_module('seamlessflow_{folder_of(service)}.__main__');"
        f"assert m.__file__.startswith({str(tmp_path)!r}), m.__file__;"
        f"assert seamlessflow.__file__.startswith({str(tmp_path)!r}), seamlessflow.__file__;"
        f"others = {[f'seamlessflow_{folder_of(other)}' for other in SERVICES if other is not service]};"
        "assert not any(map(importlib.util.find_spec, others))"
    )
    # -S: other packages are found, but not ours, which are installed by links that only site reads.
    packages = f"{sysconfig.get_path('purelib')}:{sysconfig.get_path('platlib')}"
    path = f"{tmp_path}/services/{folder_of(service)}:{tmp_path}/shared:{packages}"
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@FIVE
def test_no_file_of_a_service_names_another(service):
    """Also where an import is deferred."""
    others = "|".join(folder_of(other) for other in SERVICES if other is not service)
    pattern = re.compile(rf"\b(services\.|seamlessflow_)({others})\b|from \.+({others})\b")
    found = [path for path in (ROOT / "services" / folder_of(service)).rglob("*.py") if pattern.search(path.read_text())]

    assert not found


HEAVY = ("torch", "vllm", "transformers", "renderers", "reasoning_gym", "numpy", "nats_server")
IMPORTS = """
import importlib, sys
heavy, *modules = sys.argv[1:]
for name in heavy.split(","):
    sys.modules[name] = None  # importing it fails, as where it is not installed
for name in modules:
    importlib.import_module(name)
"""


def import_without(heavy: Iterable[str], *modules: str) -> str:
    """What an interpreter of its own complains of; empty where it imports them all."""
    command = [sys.executable, "-c", IMPORTS, ",".join(heavy), *modules]
    return subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False).stderr


def test_the_base_install_needs_no_heavy_library():
    """Contracts, bus, runtime and the command start in a second, on machines that have no torch, numpy or server at all."""
    parts = (
        "client", "contracts", "codec", "bus.jetstream", "bus.memory", "bus.nats_server", "store.large_payloads", "weights",
        "weights.manifest", "weights.reader_leases", "weights.retention", "runtime", "config.run", "local.services", "cli",
    )  # fmt: skip
    assert import_without(HEAVY, *(f"seamlessflow.{part}" for part in parts)) == ""


@pytest.mark.parametrize("service", [Service.SCHEDULER, Service.TRAJECTORY_MANAGER, Service.AGENT_RUNNER])
def test_a_service_that_touches_no_weights_needs_no_numpy(service):
    """Nor an embedded server; of the agent-runner, reasoning-gym is for runs whose tasks are from there."""
    light = [name for name in HEAVY if name != "renderers"]
    assert import_without(light, f"seamlessflow_{folder_of(service)}.__main__") == ""


def test_a_command_names_the_extra_that_it_misses(tmp_path):
    """Versions are listed without numpy, and not read without it."""
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import seamlessflow.cli as cli\n"
        "def read(): import numpy\n"
        "cli.app = read\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert done.stderr == 'seamlessflow: numpy is needed and not installed: pip install "seamlessflow[weights]"\n'


def test_every_service_has_an_extra():
    """The Dockerfile installs the library with it."""
    assert {service.value for service in SERVICES} <= set(LIBRARY["optional-dependencies"])


def test_the_dockerfile_copies_nothing_that_is_ignored_or_missing():
    """The build context holds what the Dockerfile copies, and little else."""
    kept = {line[1:] for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY") and "--from" not in line]

    assert {name for names in copied for name in names} == kept
    for name in kept:
        assert (ROOT / name).exists(), name


def test_compose_starts_the_server_and_the_five_services():
    """Each as its own image, restarted when it dies, in any order."""
    services = COMPOSE["services"]
    assert set(services) == {"nats", *(service.value for service in SERVICES)}
    for service in SERVICES:
        deployed = services[service.value]
        assert deployed["build"]["args"]["SERVICE"] == service.value
        assert (ROOT / "deploy" / deployed["build"]["context"] / deployed["build"]["dockerfile"]).is_file()
        assert deployed["restart"] == "unless-stopped"
    assert not any("depends_on" in deployed for deployed in services.values())


def test_compose_sets_only_settings_that_exist():
    """A misspelt variable would be ignored in silence."""
    known = {f"SEAMLESSFLOW_{name.upper()}" for name in Settings.model_fields}
    for service in SERVICES:
        assert set(COMPOSE["services"][service.value]["environment"]) <= known


def test_compose_asks_only_for_variables_that_task_keys_makes():
    """Secrets and public keys come from deploy/.env."""
    text = (ROOT / "deploy/compose.yaml").read_text() + (ROOT / "deploy/permissions.conf").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text)) | set(re.findall(r"nkey: \$(\w+)", text))
    made = {line.partition("=")[0] for line in key_lines()}

    assert required <= made
    assert "deploy/.env" in (ROOT / ".gitignore").read_text().split()


def test_compose_mounts_only_files_that_exist_and_volumes_that_are_declared():
    """Docker would make an empty folder in place of a missing file."""
    for name, deployed in COMPOSE["services"].items():
        for mount in deployed["volumes"]:
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (ROOT / "deploy" / source).exists(), f"{name}: {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name}: {source}"


def test_services_that_share_a_device_share_node_and_lock_folder():
    """The device lock is a file: both must see the same one."""
    worker, trainer = (COMPOSE["services"][name] for name in ("rollout-worker", "trainer"))

    assert worker["environment"]["SEAMLESSFLOW_NODE"] == trainer["environment"]["SEAMLESSFLOW_NODE"]
    assert "work:/work" in worker["volumes"] and "work:/work" in trainer["volumes"]


def test_no_registry_or_machine_is_named():
    """Where packages and images come from is the machine's business."""
    for name in ("deploy/Dockerfile", "deploy/compose.yaml", "task", "Taskfile.yml", ".ci/run", ".pre-commit-config.yaml"):
        text = (ROOT / name).read_text()
        assert not re.search(r"https?://|index-url|/work/|/home/", text), name
