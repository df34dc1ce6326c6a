"""./task and its tasks: what the README promises is there, and a bare machine is told what is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TASKS = yaml.safe_load((ROOT / "Taskfile.yml").read_text())["tasks"]
RELAY = "shared/seamlessflow/local/signal_relay.py"
MARK = "pytest.mark"
PROJECTS = [str(path.relative_to(ROOT)) for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("s*/**/pyproject.toml")))]
PROMISED = [
    "setup", "check", "test", "test:all", "setup:vllm", "test:vllm", "schemas",
    "demo", "demo:tiny", "up", "down", "run:*", "load:*",
]  # fmt: skip


def run_task(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """./task with nothing but the basic tools on PATH."""
    return subprocess.run(
        [str(folder / "task"), *arguments],
        env={"PATH": environment.pop("PATH", "/usr/bin:/bin"), "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def clone(tmp_path) -> Path:
    """The files the wrapper works with, in a folder with a space in its name."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("task", "Taskfile.yml", RELAY, *PROJECTS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def installed(clone: Path) -> Path:
    """The same with a .venv whose pip and task only write down that they were called."""
    bin_folder = clone / ".venv/bin"
    bin_folder.mkdir(parents=True)
    real = Path("/usr/bin/python3") if Path("/usr/bin/python3").exists() else Path(shutil.which("python3") or "")
    (bin_folder / "python").write_text(
        '#!/bin/sh\n[ "$1 $2" = "-m pip" ] && { echo "pip $*" >> "$(dirname "$0")/calls"; exit ${PIP_FAILS:-0}; }\n'
        f'case "$2" in "import pip"*) exit 0;; esac\nexec {real} "$@"\n'
    )
    (bin_folder / "task").write_text('#!/bin/sh\necho "task $*"\n')
    for tool in ("python", "task"):
        (bin_folder / tool).chmod(0o755)
    return clone


def installs(clone: Path) -> int:
    calls = clone / ".venv/bin/calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_task_exists_and_teaches(name):
    """Each has a description that says what one gets."""
    assert len(TASKS[name]["desc"]) > 15


def test_every_task_is_listed_and_valid():
    """go-task itself reads the file. As JSON: the list for people is coloured where CI is set."""
    task = shutil.which("task", path=f"{Path(os.sys.executable).parent}:{os.environ['PATH']}")
    assert task, "go-task-bin is part of the dev extra"
    command = [task, "--list-all", "--json"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    assert {entry["name"] for entry in json.loads(listed)["tasks"]} >= set(PROMISED)


def test_a_wrong_service_is_answered_with_the_right_ones():
    """./task run:trainr"""
    task = shutil.which("task", path=f"{Path(os.sys.executable).parent}:{os.environ['PATH']}")
    result = subprocess.run([task, "run:trainr"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode != 0
    assert "there is no service trainr: agent-runner, rollout-worker" in result.stderr


def test_ci_runs_what_the_readme_names():
    """The two commands a person types before a change is proposed."""
    text = (ROOT / ".ci/run").read_text()
    assert "for verb in check test test:vllm" in text and './task "$verb"' in text
    assert os.access(ROOT / ".ci/run", os.X_OK) and os.access(ROOT / "task", os.X_OK)


def test_what_needs_vllm_is_where_its_task_looks():
    """Elsewhere it would be skipped for ever: no other environment can run it."""
    command = " ".join(TASKS["test:vllm"]["cmds"][-1].split())
    places = [ROOT / word for word in command.split() if word.startswith("tests/")]
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if f"{MARK}.vllm" in file.read_text()]

    assert len(marked) >= 4
    for file in marked:
        assert any(file.is_relative_to(place) for place in places), file


def test_without_python_the_wrapper_says_what_is_needed(clone, tmp_path):
    """No Python, or an old one: one sentence, nothing made."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "cat", "rm", "tail", "tr", "cut", "sleep"):
        (tools / tool).symlink_to(shutil.which(tool))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)

    result = run_task(clone, "check", PATH=str(tools))

    assert result.returncode == 1
    assert "Python 3.11 or newer is needed and was not found" in result.stderr
    assert not (clone / ".venv").exists()


def test_a_python_that_cannot_make_environments_is_said_so(clone, tmp_path):
    """Debian splits venv off."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    python.chmod(0o755)

    result = run_task(clone, "check", PYTHON=str(python))

    assert result.returncode == 1
    assert "python3-venv" in result.stderr


def test_installing_happens_once_and_again_when_the_project_changes(installed):
    """The stamp holds the digest of all pyproject files; arguments go through untouched."""
    first = run_task(installed, "test", "--", "-k", "two words")
    again = run_task(installed, "test")

    assert first.returncode == 0, first.stderr
    assert f"task --exit-code --taskfile {installed}/Taskfile.yml test -- -k two words" in first.stdout
    assert again.stderr == ""
    assert installs(installed) == 1

    assert len(PROJECTS) == 7
    for number, name in enumerate(PROJECTS, 2):
        with (installed / name).open("a") as project:
            project.write("# changed\n")
        run_task(installed, "test")
        assert installs(installed) == number


def test_an_installation_that_failed_is_said_and_done_again(installed):
    """No stamp is left behind, so the next call tries again."""
    failed = run_task(installed, "test", PIP_FAILS="3")

    assert failed.returncode == 1
    assert "installing failed" in failed.stderr
    assert "--taskfile" not in failed.stdout

    assert run_task(installed, "test").returncode == 0
    assert installs(installed) == 2


COMMAND = """#!/bin/sh
trap 'echo "ended in order"; exit 7' INT TERM
echo "started with $*"
: >runs/ready
while test -d runs; do sleep 0.05; done
"""


@pytest.fixture
def stage(tmp_path):
    """The Taskfile over a command that only waits for its end; gives a way to run tasks and one to start them."""
    shutil.copy(ROOT / "Taskfile.yml", tmp_path)
    command = tmp_path / ".venv" / "bin" / "seamlessflow"
    command.parent.mkdir(parents=True)
    command.write_text(COMMAND)
    command.chmod(0o755)
    task = shutil.which("task", path=f"{Path(os.sys.executable).parent}:{os.environ['PATH']}")

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [task, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return tmp_path / "runs" / "up.pid", start


def test_down_ends_what_up_started_and_nothing_else(stage):
    """In order; the file with the process number goes with the command. A second up is refused meanwhile."""
    file, start = stage
    up = start("up", "--", "--port", "4222", "--store", "file:///a b")
    _until(file.with_name("ready").exists)
    second = start("up").communicate(timeout=30)[0]
    down = start("down").communicate(timeout=30)[0]

    assert "is up already" in second
    assert "ended" in down
    said = up.communicate(timeout=30)[0]
    assert "started with up --port 4222 --store file:///a b" in said
    assert "ended in order" in said
    assert not file.exists()
    assert "nothing is up" in start("down").communicate(timeout=30)[0]


def test_a_number_that_another_process_has_by_now_is_left_alone(stage):
    """After a power cut the file is still there, and its number may be anybody's."""
    file, start = stage
    stranger = subprocess.Popen(["sleep", "60"])
    file.parent.mkdir()
    file.write_text(f"{stranger.pid}\n")
    try:
        assert "nothing is up" in start("down").communicate(timeout=30)[0]
        assert stranger.poll() is None
        assert not file.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_ctrl_c_reaches_what_up_started(stage):
    """And the file is tidied up."""
    file, start = stage
    up = start("up")
    _until(file.with_name("ready").exists)
    os.killpg(up.pid, signal.SIGINT)  # as a terminal does

    assert "ended in order" in up.communicate(timeout=30)[0]
    assert not file.exists()


COUNTS = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen:
    time.sleep(0.02)
time.sleep(1.0)
print([signal.Signals(number).name for number in seen])
sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_reaches_the_command_once_whoever_it_was_sent_to(tmp_path, send, number):
    """To ./task's process alone (kill, CI systems) or to the whole group (a terminal). The exit code is the command's own."""
    task = shutil.which("task", path=f"{Path(os.sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "counts.py").write_text(COUNTS)
    (tmp_path / "Taskfile.yml").write_text(f'version: "3"\ntasks: {{demo: {{cmds: ["{os.sys.executable} -S counts.py"]}}}}\n')
    argv = [os.sys.executable, "-I", ROOT / RELAY, task, "--exit-code", "--silent", "demo"]
    started = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stdout.readline() == "ready\n"
    send(started.pid, number)

    assert started.stdout.read().splitlines()[-1] == f"['{number.name}']"
    assert started.wait(30) == 130


def _until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
