"""``seamlessflow weights verify``: each fault is named, and nothing else is one; with and without a server, on file and S3."""

from __future__ import annotations

import pytest

from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder, remove_folder
from seamlessflow.weights import verify as verifying
from seamlessflow.weights.delta import encode
from seamlessflow.weights.inventory import Listed
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import tensor_digests
from tests.store.small_disk import files_of_at_most
from tests.store.weights_builders import safetensors, stepped
from tests.store.weights_place import LINE, RUN, Place, command, path_of, publish, publish_version


@pytest.mark.parametrize("with_server", [True, False])
def test_verify_reads_all_versions_and_says_that_they_are_as_written(place: Place, with_server: bool):
    """One line each while it goes on."""
    said = command("verify", RUN, *(place.places if with_server else place.places[2:]))

    assert said.code == 0, said.words
    assert "read: 8 of 8 versions, faults: 0" in said.words
    assert [line.split()[:3] for line in said.words.splitlines()[:8]] == [["ok", "version", str(each)] for each in range(8)]


def test_verify_names_each_fault_and_what_it_costs(place: Place):
    """A damaged file, whatever builds on it, and not what a later full version saves."""
    place.damage(4, DELTA_FILE)
    said = command("verify", RUN, *place.places)

    assert said.code == 1
    faults = [line for line in said.words.splitlines() if line.startswith("FAULT")]
    assert [fault.split()[2] for fault in faults] == ["4", "5"]
    assert "do not have the manifest's digest" in faults[0] and "version 4, which it builds on" in faults[1]
    assert "read: 8 of 8 versions, faults: 2" in said.words


def test_verify_one_version_reads_what_it_needs(place: Place):
    """Its line; damage elsewhere is not its matter."""
    place.damage(1, DELTA_FILE)

    assert command("verify", RUN, "5", *place.places).code == 0
    said = command("verify", RUN, "2", *place.places)
    assert said.code == 1 and "FAULT  version 1" in said.words


def test_verify_finds_tensors_that_are_not_what_was_published(place: Place):
    """Files with the right digests whose changes lead elsewhere: the manifest of a writer that was wrong."""
    wrong = {**tensor_digests(LINE[7]), "body": "0" * 64}
    facts = version_facts(
        weights_version=7, step=7, dtype="bfloat16", base=6, base_path=path_of(6), tensors=wrong
    )  # fmt: skip
    publish_folder(place.store, path_of(7), {DELTA_FILE: encode(LINE[6], LINE[7])}, facts)
    said = command("verify", RUN, "7", *place.places)

    assert said.code == 1 and "1 tensors are not what was published, body the first" in said.words


def test_verify_finds_values_that_are_no_numbers(place: Place):
    """Whoever wrote them."""
    broken = stepped(LINE[0], share=0.0, farthest=1, seed=0)
    broken["body"].words[17] = 0x7FC0
    facts = version_facts(weights_version=0, step=0, dtype="bfloat16", base=None, tensors=tensor_digests(broken))
    publish_folder(place.store, path_of(0), {WEIGHTS_FILE: safetensors(broken)}, facts)

    said = command("verify", RUN, "0", *place.places)
    assert said.code == 1 and "tensor body has values that are NaN" in said.words


def test_verify_blames_a_full_disk_here_on_no_version(place: Place):
    """It cannot go on, and says what to do."""
    with files_of_at_most(1000):
        said = command("verify", RUN, *place.places[2:])

    assert said.code == 2 and "point TMPDIR at a folder that has" in said.words


def test_verify_counts_what_it_read(place: Place, monkeypatch):
    """A version that the run removed meanwhile is gone, and not read; nor is it a fault."""
    verify = verifying.Verifier.verify

    def overtaken(verifier: verifying.Verifier, listed: Listed) -> verifying.Verified:
        if listed.weights_version == 6:
            publish(place.store, 8)
            place.do(lambda client: publish_version(client, 8))
            remove_folder(place.store, path_of(6))
        return verify(verifier, listed)

    monkeypatch.setattr(verifying.Verifier, "verify", overtaken)
    said = command("verify", RUN, "6", *place.places)

    assert said.code == 0, said.words
    assert "gone   version 6" in said.words and "read: 0 of 1 versions, faults: 0" in said.words


def test_verify_misses_the_head_and_reads_manifests(place: Place):
    """The one version that the run cannot do without; a manifest that makes no sense is a fault of its own."""
    place.store.remove(f"{path_of(7)}/{MANIFEST}")
    place.store.write(f"{path_of(2)}/{MANIFEST}", b"[]")
    said = command("verify", RUN, *place.places)

    assert said.code == 1
    assert "the head is version 7, and demo/weights/00000007-a is not complete in the store" in said.words
    assert "is not the manifest of a version" in said.words
