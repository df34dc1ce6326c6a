"""``train --nats``: the run goes on without the command, and the command finds it again."""

import json
import signal

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer

RUN = """
[model]
name = "no/such-model-here"
[[agents]]
env = "a"
entrypoint = "no_such_module_here:f"
[algorithm]
steps = {steps}
"""


@pytest.fixture
def server(tmp_path):
    with_server = EmbeddedServer(tmp_path / "nats").start()
    yield with_server
    with_server.stop()


def test_the_run_goes_on_and_is_found_again(start, server, tmp_path):
    """Ctrl-C only ends the following; --resume needs neither URL nor run file; a taken name changes nothing."""
    here, there = tmp_path / "here", tmp_path / "there"
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(steps=3))
    first = start(here, "train", str(file), "--name", "far", "--nats", server.url)
    first.wait_for("run far in runs/far/")
    first.process.send_signal(signal.SIGINT)
    code, said = first.end()

    assert code == 130
    assert "on this machine, which need not matter: these cannot be used" in said
    assert "stopping: the run goes on where its services are" in said
    assert f"run far goes on at nats://127.0.0.1:{server.port}" in said
    assert "seamlessflow train --resume far" in said
    assert "seamlessflow stop far" in said
    assert server.url not in said
    assert json.loads((here / "runs" / "far" / "up.json").read_text())["nats_url"] == server.url

    again = start(here, "train", "--resume", "far")
    again.wait_for("run far in runs/far/")
    again.process.send_signal(signal.SIGINT)
    assert again.end()[0] == 130

    file.write_text(RUN.format(steps=4))
    taken = start(there, "train", str(file), "--name", "far", "--nats", server.url)
    code, said = taken.end()
    assert code == 2
    assert "a run named 'far' exists on this server" in said
    assert not (there / "runs" / "far" / "config.toml").exists()
