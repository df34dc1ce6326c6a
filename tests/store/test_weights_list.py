"""``seamlessflow weights list``: what is in the store, and who reads it; on file and S3."""

from __future__ import annotations

import asyncio
import json

from seamlessflow.client import Client
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights.manifest import DELTA_FILE
from seamlessflow.weights.reader_leases import Reader
from tests.store.weights_place import RUN, Place, Said, command, path_of


def test_list_shows_versions_with_what_they_build_on_and_the_head(place: Place):
    """The same for programs; who died while writing is told from who may be writing."""
    place.store.write(f"{weights_path(RUN, 5, 'dead')}/{WEIGHTS_FILE}", b"half")
    place.store.write(f"{weights_path(RUN, 8, 'new')}/{WEIGHTS_FILE}", b"half")
    said = command("list", RUN, *place.places)
    listed = json.loads(command("list", RUN, "--json", *place.places).words)

    assert said.code == 0
    assert "head" in said.words and "being written, or its writer died" in said.words
    assert (listed["head"], listed["is_over"]) == (7, False)
    by_path = {each["path"]: each for each in listed["versions"]}
    assert [by_path[path_of(version)]["kind"] for version in range(8)] == [
        "full", "changes", "changes", "full, changes", "changes", "changes", "full, changes", "changes",
    ]  # fmt: skip
    newest = by_path[path_of(7)]
    assert (newest["step"], newest["base"], newest["is_head"], newest["is_complete"]) == (7, 6, True, True)
    assert newest["num_bytes"] == len(place.store.read(f"{path_of(7)}/{DELTA_FILE}"))
    dead = by_path[weights_path(RUN, 5, "dead")]
    assert (dead["kind"], dead["notes"], dead["num_bytes"]) == ("incomplete", ["its writer died"], 4)


def test_list_names_who_reads_and_who_could_not(place: Place):
    """So people see what holds what."""

    async def read(client: Client) -> None:
        async with Reader(client.bus, RUN, "worker-1").lease_one(2, path_of(2)):
            await Reader(client.bus, RUN, "worker-2").missed(7, path_of(7), "no route")
            said.append(await asyncio.to_thread(command, "list", RUN, *place.places))
            said.append(await asyncio.to_thread(command, "list", RUN, "--json", *place.places))

    said: list[Said] = []
    place.do(read)

    assert "worker-1" in said[0].words and "worker-2 could not have version 7: no route" in said[0].words
    two = json.loads(said[1].words)["versions"][2]
    assert [each["reader"] for each in two["readers"]] == ["worker-1"]


def test_a_second_attempt_that_nobody_published_is_called_that(place: Place):
    """The journal knows which one counts."""
    publish_folder(place.store, weights_path(RUN, 4, "late"), {WEIGHTS_FILE: b"x"}, {"weights_version": 4, "base": None})

    assert "another attempt was published" in command("list", RUN, *place.places).words
