"""What is deployed: an image with one service, a compose file whose names exist, tasks that are there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
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
    assert sorted(path.name for path in (tmp_path / "services").iterdir()) == sorted(["__init__.py", folder_of(service)])

    code = (
        f"import importlib, seamlessflow; m = importlib.import_module('services.{folder_of(service)}.__main__');"
        f"assert m.__file__.startswith({str(tmp_path)!r}), m.__file__;"
        f"assert seamlessflow.__file__.startswith({str(tmp_path)!r}), seamlessflow.__file__"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{tmp_path}/shared", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
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
    pattern = re.compile(rf"\bservices\.({others})\b|from \.+({others})\b")
    found = [path for path in (ROOT / "services" / folder_of(service)).rglob("*.py") if pattern.search(path.read_text())]

    assert not found


def test_the_base_install_loads_no_heavy_library():
    """Contracts, bus, runtime and the command start in a second, on machines that have no torch at all."""
    code = (
        "import importlib, sys\n"
        "for name in ('contracts', 'codec', 'bus.jetstream', 'bus.memory', 'bus.server', 'blobs', 'weights', 'runtime',"
        " 'run_config', 'cli'):\n"
        "    importlib.import_module('seamlessflow.' + name)\n"
        "print(*sorted({'torch', 'vllm', 'transformers', 'renderers', 'reasoning_gym', 'numpy'} & set(sys.modules)))"
    )
    path = f"{ROOT}/shared"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == []


def test_every_service_has_an_extra():
    """The Dockerfile installs seamlessflow[<service>]."""
    assert {service.value for service in SERVICES} <= set(PROJECT["project"]["optional-dependencies"])


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
