"""``seamlessflow weights gc``: of a run that goes on and of one that ended, with a server and without one, on file and S3."""

from __future__ import annotations

import asyncio

from seamlessflow.client import Client
from seamlessflow.weights import WEIGHTS_FILE, weights_path
from seamlessflow.weights.reader_leases import Reader
from tests.store.weights_place import RUN, Place, Said, command, path_of


def test_gc_shows_and_changes_nothing_until_it_is_told_to(place: Place):
    """What goes, what stays and why; then what was shown is removed, and nothing is left to do."""
    place.store.write(f"{weights_path(RUN, 2, 'dead')}/{WEIGHTS_FILE}", b"half")
    shown = command("gc", RUN, *place.places)

    assert place.folders == [0, 1, 2, 2, 3, 4, 5, 6, 7]
    assert "the head" in shown.words and "version 4 builds on it" in shown.words
    assert "4 folders" in shown.words and "run it again with --delete" in shown.words
    assert "4 folders" in command("gc", RUN, "--delete", *place.places).words
    assert place.folders == [3, 4, 5, 6, 7]
    assert "nothing to remove" in command("gc", RUN, "--delete", *place.places).words
    assert command("verify", RUN, *place.places).code == 0


def test_gc_leaves_what_somebody_reads(place: Place):
    """And says who it is."""

    async def read(client: Client) -> None:
        async with Reader(client.bus, RUN, "worker-1").lease_one(2, path_of(2)):
            said.append(await asyncio.to_thread(command, "gc", RUN, "--delete", *place.places))

    said: list[Said] = []
    place.do(read)

    assert "read by worker-1" in said[0].words and "nothing to remove" in said[0].words
    assert place.folders == list(range(8))


def test_gc_never_goes_below_what_a_run_that_goes_on_needs(place: Place):
    """Nor touches what may be being written; of one that ended one version may be enough, and nobody writes."""
    place.store.write(f"{weights_path(RUN, 8, 'new')}/{WEIGHTS_FILE}", b"half")
    said = command("gc", RUN, "--keep", "1", "--delete", *place.places)
    assert said.code == 2 and "run demo has not ended, and its workers rely on the newest 4" in said.words
    assert place.folders == list(range(9))
    command("gc", RUN, "--delete", *place.places)
    assert place.folders == [3, 4, 5, 6, 7, 8]

    place.end()
    command("gc", RUN, "--delete", *place.places)
    assert place.folders == [3, 4, 5, 6, 7]
    assert command("gc", RUN, "--keep", "1", "--delete", *place.places).code == 0
    assert place.folders == [6, 7]
    assert command("verify", RUN, *place.places).code == 0


def test_gc_by_the_store_alone_shows_and_removes_nothing(place: Place):
    """Who reads, only the server knows."""
    assert "could go" in command("gc", RUN, *place.places[2:]).words
    said = command("gc", RUN, "--delete", *place.places[2:])
    assert said.code == 2 and "give --nats URL to delete" in said.words
    assert place.folders == list(range(8))
