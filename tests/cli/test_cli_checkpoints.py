"""``seamlessflow checkpoints``: what the journal names beside what the store has.

journal                         store                        listed as
newest commit or rollback       complete                     newest
one of the ``keep`` newest      complete                     kept; a fault where it is not there, or not complete
older commit                    there, or removed            older
taken back by a rollback        there, or removed            rolled back
-                               of a claim's line            uncommitted (newest line), late (older ones)
-                               of no claim that it holds    unexplained; passed over, where a rollback decided so
"""

import asyncio
import json
from dataclasses import replace

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.checkpoints.checkpoint_folders import BARRIER, OPTIMIZER_FILE
from seamlessflow.cli.checkpoints import checkpoint_commands
from seamlessflow.client import Client
from seamlessflow.codec import to_message
from seamlessflow.contracts import RunEnded, StepsCommitted
from seamlessflow.errors import Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE
from tests.cli.checkpoints_place import RUN, Place, claimed, command, committed, held, path_of, publish, rolled_back


@pytest.fixture
def place(nats_binary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Place(Store(f"file://{tmp_path}/store"))


@pytest.fixture
def three(place):
    """A run of three commits, of which two are kept and the first one was removed."""
    place.write(2), place.write(3, predecessor=path_of(2))
    place.bar()
    place.journal(claimed(1), committed(1, 1, "a"), committed(2, 1, "b", "c"), committed(3, 1, "d"))
    return place


def statuses(place):
    return {path: each["status"] for path, each in place.listed().items()}


def test_list_shows_what_a_suspended_run_goes_on_from(three):
    """Its server is started for the look. Removed ones are counted, and listed for programs; the barrier is not shown."""
    shown = command("checkpoints", "list", RUN)
    listed = three.listed()

    assert shown.code == 0 and "newest: the run goes on from it" in shown.words
    assert "1 older ones were removed" in shown.words and BARRIER not in shown.words
    assert "--checkpoint STEP (STEP is one of 2, 3)" in shown.words
    assert [each["status"] for each in listed.values()] == ["older", "kept", "newest"]
    assert listed[path_of(1)]["is_in_store"] is False and not any(BARRIER in path for path in listed)
    newest = listed[path_of(3)]
    assert (newest["step"], newest["line"], newest["groups"], newest["is_complete"], newest["num_bytes"]) == (
        3, 1, ["d"], True, 750,
    )  # fmt: skip
    assert newest["committed_at"] > 0


def test_list_tells_a_late_writer_from_a_lost_journal(three):
    """What no commit names is garbage where the journal holds its claim; else a person has to look."""
    three.write(4, 2, "late", predecessor=path_of(3)), three.write(5, 3, "new", predecessor=path_of(3))
    three.write(6, 3, "lost", nonce="gone", predecessor=path_of(3)), three.write(7, 3, "behind", predecessor="demo/gone")
    three.store.write(f"{path_of(8, 3)}/{WEIGHTS_FILE}", b"half")
    three.journal(claimed(2), claimed(3), held(3, "they are unexplained"))

    found = three.listed()
    assert {path: found[path]["status"] for path in list(found)[3:]} == {
        path_of(4, 2, "late"): "late",
        path_of(5, 3, "new"): "uncommitted",
        path_of(6, 3, "lost"): "unexplained",
        path_of(7, 3, "behind"): "unexplained",
        path_of(8, 3): "uncommitted",
    }
    assert (found[path_of(8, 3)]["is_complete"], found[path_of(8, 3)]["num_bytes"]) == (False, 4)
    assert "held: they are unexplained" in command("checkpoints", "list", RUN).words


def test_list_follows_a_rollback(three):
    """What was committed behind it is rolled back; what it passed over counts no more."""
    lost = three.write(6, 1, "lost", nonce="gone")
    three.journal(claimed(2), rolled_back(2, 2, path_of(2), lost))

    assert statuses(three) == {
        path_of(1): "older", path_of(2): "newest", path_of(3): "rolled back", lost: "passed over",
    }  # fmt: skip
    assert "(STEP is one of 2)" in command("checkpoints", "list", RUN).words


def test_list_of_a_run_of_an_earlier_release(place):
    """Its highest complete checkpoint is what a trainer goes on from, named or not; a commit under a claim follows."""
    one, two = place.write_earlier(1), place.write_earlier(2)
    place.journal()
    message = to_message(StepsCommitted(run=RUN, step=1, line=1, checkpoint=one, groups=("a",)))
    former = replace(message, subject=f"sf.{RUN}.ev.step.1.committed", expected_subject=None)
    place.do(lambda client: client.bus.publish(former))
    assert statuses(place) == {one: "kept", two: "newest"}

    place.write(2, 2)
    place.journal(claimed(2), committed(2, 2, "b"))
    assert statuses(place) == {one: "kept", path_of(2, 2): "newest", two: "late"}


def test_a_kept_checkpoint_that_is_not_there_is_seen(three):
    """In red words, and it is no target that is advised."""
    three.store.remove_folder(path_of(3)), three.store.remove(f"{path_of(2)}/{MANIFEST}")
    shown = command("checkpoints", "list", RUN).words

    assert "newest: the run goes on from it, and it is not in the store" in shown
    assert "kept, and it has no manifest.json" in shown and "--checkpoint STEP" not in shown


def test_verify_reads_every_byte_and_changes_nothing(three):
    """A line for each checkpoint that counts."""
    verified = command("checkpoints", "verify", RUN)

    assert verified.code == 0 and "read: 2 of 2 checkpoints, faults: 0" in verified.words
    assert verified.words.count("ok     step") == 2


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda store, path: store.write(path, b"W" * 700), "is not read as it was written"),
        (lambda store, path: store.write(path, b"weights"), "has 7 bytes, and was written with 700"),
        (lambda store, path: store.remove(path), "is not in the store"),
        (lambda store, path: store.write(path.replace(WEIGHTS_FILE, MANIFEST), b"{"), "is not a manifest"),
        (lambda store, path: store.write(path.replace(WEIGHTS_FILE, MANIFEST), b"[]"), "is not a manifest"),
        (lambda store, path: store.write(path.replace(WEIGHTS_FILE, MANIFEST), b'{"files": {}}'), "not the manifest of a"),
        (lambda store, path: store.remove(path.replace(WEIGHTS_FILE, MANIFEST)), "it has no manifest.json"),
        (lambda store, path: store.remove_folder(path.rsplit("/", 1)[0]), "it is not in the store"),
    ],
    ids=["bytes", "truncated", "file gone", "no json", "no object", "no facts", "no manifest", "folder gone"],
)
def test_verify_names_the_file_and_its_fault(three, damage, fault):
    """Exit code 1, and what can be done: the other one is intact."""
    damage(three.store, f"{path_of(3)}/{WEIGHTS_FILE}")
    verified = command("checkpoints", "verify", RUN)

    assert verified.code == 1
    [line] = [line for line in verified.words.splitlines() if line.startswith("FAULT")]
    assert path_of(3) in line and fault in line
    assert "bring the files back" in verified.words and "(STEP is one of 2)" in verified.words


def test_verify_of_one_step(three):
    """Also of one that does not count any more; one that is not there is named with those that are."""
    three.journal(claimed(2), rolled_back(2, 2, path_of(2)))
    three.store.write(f"{path_of(3)}/{OPTIMIZER_FILE}", b"S" * 50)

    assert command("checkpoints", "verify", RUN).code == 0
    verified = command("checkpoints", "verify", RUN, "3")
    assert verified.code == 1 and OPTIMIZER_FILE in verified.words and "read: 1 of 1 checkpoints, faults: 1" in verified.words
    missed = command("checkpoints", "verify", RUN, "1")
    assert missed.code == 2 and "there is no checkpoint of step 1 (any more); there are: 2" in missed.words


def test_a_fault_is_one_that_several_reads_find(three, monkeypatch):
    """A store that brought wrong bytes once has not lost any."""
    faults = iter(["wrong", "wrong", ""])
    monkeypatch.setattr(checkpoint_commands, "_read_once", lambda *_: next(faults, ""))

    assert command("checkpoints", "verify", RUN, "3").code == 0


def test_a_store_that_is_away_is_no_fault(three, monkeypatch):
    """Nothing is known then: exit code 2."""

    def away(self, path, start, end):
        raise Unavailable("the store is away")

    monkeypatch.setattr(Store, "read_range", away)
    verified = command("checkpoints", "verify", RUN)
    assert verified.code == 2 and "the store is away" in verified.words


def test_what_the_run_removed_meanwhile_is_no_fault(three, monkeypatch):
    """It committed another one while the command read."""
    read_once, went_on = checkpoint_commands._read_once, []

    def goes_on(store, path, file):
        if not went_on:
            went_on.append(path)
            three.write(4, predecessor=path_of(3))
            asyncio.run(commits())
            store.remove_folder(path_of(2))
        return read_once(store, path, file)

    async def commits():
        async with Client.open(server.url, three.store.url) as client:
            await publish(client, committed(4))

    monkeypatch.setattr(checkpoint_commands, "_read_once", goes_on)
    server = EmbeddedServer(three.folder.server).start()
    try:
        verified = command("checkpoints", "verify", RUN, "--nats", server.url)
    finally:
        server.stop()
    assert verified.code == 0 and "the run removed it meanwhile" in verified.words
    assert "read: 1 of 2 checkpoints, faults: 0" in verified.words


def test_a_run_that_is_over_is_not_told_how_to_go_on(three):
    """Its checkpoints can be looked at all the same."""
    three.journal(RunEnded(run=RUN, reason="completed", steps=3, nonce="n1"))
    shown = command("checkpoints", "list", RUN)

    assert shown.code == 0 and "go on:" not in shown.words
    assert json.loads(command("checkpoints", "list", RUN, "--json").words)["is_over"] is True


def test_a_store_alone_tells_what_lies_there(three, tmp_path, monkeypatch):
    """Whether it counts, the journal knows. All that are complete can be verified."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    where = ("--store", three.store.url)
    shown = command("checkpoints", "list", RUN, *where)

    assert shown.code == 0 and "give --nats URL" in shown.words
    assert "read: 2 of 2 checkpoints, faults: 0" in command("checkpoints", "verify", RUN, *where).words
    missed = command("checkpoints", "list", "other", *where)
    assert missed.code == 2 and "there are no checkpoints of run 'other'" in missed.words
    missed = command("checkpoints", "list", RUN)
    assert missed.code == 2 and "no folder runs/demo" in missed.words


def test_a_run_without_a_checkpoint_is_no_error(place):
    """It has not come to its first commit."""
    place.journal()

    assert command("checkpoints", "list", RUN).code == 0
    assert "read: 0 of 0 checkpoints, faults: 0" in command("checkpoints", "verify", RUN).words
