"""``seamlessflow weights`` that is left in the middle."""

import hashlib
import json
import os
import signal
import time

import pytest

from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, model_path, publish_folder, weights_path


@pytest.mark.parametrize(
    ("verb", "begun"),
    [(("verify", "slow"), "scratch/seamlessflow-verify-*"), (("export", "slow", "out"), "here/.out.*.part/config.json")],
    ids=["verify", "export"],
)
def test_ctrl_c_ends_it_at_once_and_leaves_nothing(start, tmp_path, monkeypatch, verb, begun):
    """Also while it waits for a store that does not answer: here a pipe that nobody writes to."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    store, path = Store(f"file://{tmp_path}/store"), weights_path("slow", 0)
    publish_folder(store, model_path("slow"), {"config.json": b"{}"}, {})
    listed = {WEIGHTS_FILE: {"sha256": hashlib.sha256(b"never").hexdigest(), "bytes": 5}}
    store.write(f"{path}/{MANIFEST}", json.dumps({"weights_version": 0, "base": None, "files": listed}).encode())
    os.mkfifo(tmp_path / "store" / path / WEIGHTS_FILE)
    command = start(tmp_path / "here", "weights", *verb, "--store", store.url)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(begun)):
        assert command.process.poll() is None and time.monotonic() < deadline, command.output.read_text()
        time.sleep(0.02)
    command.process.send_signal(signal.SIGINT)

    assert command.process.wait(10) == 130, command.output.read_text()
    assert [each.name for each in (tmp_path / "here").iterdir()] == ["output"]
    assert not list((tmp_path / "scratch").iterdir())
