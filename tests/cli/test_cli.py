"""The command: help that teaches, and mistakes answered in one line with exit code 2."""

import io
import json
import os
import subprocess
import sys

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer, free_port
from seamlessflow.cli.console import make_console


def command(*arguments, cwd, env=None):
    return subprocess.run(
        [sys.executable, "-c", "from seamlessflow.cli import main; main()", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    "verb",
    [
        "up",
        "train",
        "submit",
        "stop",
        "status",
        "ledger",
        "nodes",
        "why",
        "tag",
        "untag",
        "drain",
        "gantt",
        "replay",
        "checkpoints",
        "doctor",
    ],
)
def test_every_verb_explains_itself(verb, tmp_path):
    """--help answers for each."""
    shown = command(verb, "--help", cwd=tmp_path)

    assert shown.returncode == 0
    assert "Usage" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "nowhere.toml"), "no such file"),
        (("train",), "either a run file or --resume"),
        (("train", "--resume", "ghost"), "cannot be resumed"),
        (("train", "run.toml", "--checkpoint", "3"), "--checkpoint goes back in a run that is there: give --resume RUN, too"),
        (("train", "--checkpoint", "3"), "give --resume RUN, too"),
        (("train", "--resume", "ghost", "--checkpoint", "3"), "cannot be resumed"),
        (("checkpoints", "list", "ghost"), "no folder runs/ghost"),
        (("checkpoints", "verify", "ghost"), "no folder runs/ghost"),
        (("train", "--resume", "ghost", "--steps", "3"), "leave out --name, --seed, --steps and --engine"),
        (("train", "--resume", "ghost", "--seed", "3"), "leave out --name, --seed, --steps and --engine"),
        (("train", "--resume", "No Such Name"), "name of the run: expected up to 48 of a-z"),
        (("nodes", "--nats", "."), "no `seamlessflow up` is running in this folder"),
        (("status", "ghost"), "no folder runs/ghost"),
        (("nodes",), "say which with --nats"),
        (("gantt", "ghost"), "no folder runs/ghost"),
        (("gantt", "ghost", "--from", "5", "--to", "5"), "there is nothing between the two"),
        (("replay", "ghost", "--service", "trainer"), "cannot be replayed yet"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, said, tmp_path):
    """No traceback, exit code 2, and what to do."""
    failed = command(*arguments, cwd=tmp_path)

    assert failed.returncode == 2
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_config_typo_is_named(tmp_path):
    """The key that is wrong and the keys there are."""
    file = tmp_path / "run.toml"
    file.write_text('[model]\nname = "m"\n[[agents]]\nenv = "a"\nentrypoint = "m:f"\n[algorithm]\nstep = 3\n')
    failed = command("train", str(file), cwd=tmp_path)

    assert failed.returncode == 2
    assert "algorithm.step: no such key" in failed.stderr
    assert "algorithm.steps: missing" in failed.stderr


def test_a_model_that_does_not_exist_is_said_before_anything_starts(tmp_path):
    """No service and no server is started for it."""
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nname = "no/such-model-anywhere"\n[[agents]]\nenv = "a"\nentrypoint = "json:loads"\n[algorithm]\nsteps = 3\n'
    )
    failed = command("train", str(file), cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"})

    assert failed.returncode == 2
    assert "no/such-model-anywhere" in failed.stderr
    assert not (tmp_path / "runs").exists()


AGENTS = """
[model]
name = "tiny-calculator"
[[agents]]
env = "typo"
entrypoint = "json:lods"
[[agents]]
env = "judged"
entrypoint = "json:loads"
reward = "no_such_module:verifier"
[[agents]]
env = "program"
command = ["no-such-program"]
[algorithm]
steps = 1
"""


def test_agents_that_cannot_be_had_are_all_listed_before_anything_starts(tmp_path):
    """A mistyped function, a verifier's missing module, a missing program: each with the agent's name."""
    (tmp_path / "run.toml").write_text(AGENTS)
    failed = command("train", "run.toml", cwd=tmp_path)

    assert failed.returncode == 2
    assert "agent 'typo', entrypoint 'json:lods': AttributeError" in failed.stderr
    assert "agent 'judged', reward 'no_such_module:verifier': ModuleNotFoundError" in failed.stderr
    assert "agent 'program', command: no program 'no-such-program'" in failed.stderr
    assert "'json:loads'" not in failed.stderr
    assert not (tmp_path / "runs").exists()


def test_a_name_that_is_taken_is_refused_and_nothing_of_that_run_changes(tmp_path):
    """The other run's own configuration is what it can be resumed with."""
    (tmp_path / "run.toml").write_text(AGENTS)
    kept = tmp_path / "runs" / "mine" / "config.toml"
    kept.parent.mkdir(parents=True)
    kept.write_text("# as it was started")
    failed = command("train", "run.toml", "--name", "mine", cwd=tmp_path)

    assert failed.returncode == 2
    assert "there is a run named 'mine'" in failed.stderr
    assert kept.read_text() == "# as it was started"


def test_a_server_that_is_not_there_is_said_within_seconds(tmp_path):
    """With its address and without its password."""
    failed = command("status", "ghost", "--nats", f"nats://me:hush@127.0.0.1:{free_port()}", cwd=tmp_path)

    assert failed.returncode == 2
    assert "did not answer within 5 s" in failed.stderr
    assert "hush" not in failed.stderr + failed.stdout
    assert failed.stdout == ""


def test_a_port_in_use_is_said(tmp_path):
    """The number, and what to do."""
    with_server = EmbeddedServer(tmp_path / "other", port=free_port()).start()
    try:
        failed = command("up", "--port", str(with_server.port), cwd=tmp_path)
    finally:
        with_server.stop()

    assert failed.returncode == 2
    assert f"port {with_server.port} is already in use" in failed.stderr


def test_wrong_task_lines_are_listed_and_nothing_is_published(tmp_path):
    """Every wrong line by number."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task": "t1", "env": "a", "prompt": "x"}\n{"task": "t2"}\nnot json\n')
    failed = command("submit", str(file), "--run", "ghost", cwd=tmp_path)

    assert failed.returncode == 2
    assert "line 2: env: Field required" in failed.stderr
    assert "line 3:" in failed.stderr
    assert "line 1" not in failed.stderr


def test_a_store_that_cannot_be_written_is_said_by_doctor(tmp_path):
    """With the store's URL and the reason."""
    (tmp_path / "plain-file").write_text("in the way")
    shown = command("doctor", "--store", f"file://{tmp_path}/plain-file", cwd=tmp_path)

    assert shown.returncode == 1
    assert "cannot write" in shown.stdout


def test_tasks_reach_the_run_of_a_server(tmp_path):
    """submit needs nothing but a URL and a run's name; an unknown run is named."""
    server = EmbeddedServer(tmp_path / "nats").start()
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"task": "t1", "env": "a", "prompt": "x"}))
    try:
        failed = command("submit", str(file), "--run", "ghost", "--nats", server.url, cwd=tmp_path)
    finally:
        server.stop()

    assert failed.returncode == 2
    assert "'ghost' has no journal on this server" in failed.stderr


RUNNABLE = """
[model]
name = "tiny-calculator"
[[agents]]
env = "a"
entrypoint = "json:loads"
[algorithm]
steps = 1
"""


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("file://{here}/plain-file/store", "cannot write probe (67 bytes): [Errno 20] Not a directory"),
        ("file://{here}/plain-file", "cannot write probe"),
        ("file:///proc/no/store", "store file:///proc/no/store: cannot write"),
        ("s3://no-such-bucket-of-ours/runs", "Unable to locate credentials"),
        ("s4://bucket/runs", "store s4://bucket/runs: Protocol not known: s4"),
    ],
)
def test_a_store_that_cannot_be_written_is_said_before_anything_is_started(store, said, tmp_path):
    """At once: before the model is looked for. A resumed run's store, too, before its server starts."""
    if store.startswith("s3"):
        pytest.importorskip("s3fs")
    (tmp_path / "plain-file").write_text("in the way")
    (tmp_path / "run.toml").write_text(RUNNABLE.replace("tiny-calculator", "no/such-model-anywhere"))
    nowhere = {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "AWS_CONFIG_FILE": "/nowhere",
    }
    url = store.format(here=tmp_path)
    failed = command("train", "run.toml", "--name", "it", "--store", url, cwd=tmp_path, env=nowhere)

    assert failed.returncode == 2
    assert said in failed.stderr and "Traceback" not in failed.stderr
    assert not (tmp_path / "runs").exists()

    kept = tmp_path / "runs" / "it"
    (kept / "nats").mkdir(parents=True)
    (kept / "up.json").write_text(json.dumps({"nats_url": "nats://h:1", "store_url": url}))
    failed = command("train", "--resume", "it", cwd=tmp_path, env=nowhere)
    assert failed.returncode == 2
    assert said in failed.stderr
    assert list((kept / "nats").iterdir()) == []


@pytest.mark.parametrize("in_the_way", ["runs", "runs/it"])
def test_a_file_in_the_place_of_the_runs_folder_is_said(in_the_way, tmp_path):
    """Nothing is started that would die of it."""
    (tmp_path / "run.toml").write_text(RUNNABLE)
    (tmp_path / in_the_way).parent.mkdir(exist_ok=True)
    (tmp_path / in_the_way).write_text("in the way")
    failed = command("train", "run.toml", "--name", "it", cwd=tmp_path)

    assert failed.returncode == 2
    assert "runs/it: the run's files belong there, and" in failed.stderr and "is not a folder" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_pipe_gets_plain_lines_even_where_colours_are_forced(monkeypatch):
    """CI systems do that; a table that moves does not belong into their logs."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout", io.StringIO())

    assert not make_console().is_terminal
