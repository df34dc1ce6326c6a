"""``seamlessflow weights export``: a whole folder or none, with a server and without one, on file and S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seamlessflow.errors import SeamlessFlowError
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, inventory, publish_folder, weights_path
from seamlessflow.weights.safetensors_file import map_tensors
from tests.store.weights_builders import safetensors, same
from tests.store.weights_place import LINE, RUN, Place, Said, command, publish


@pytest.mark.parametrize("with_server", [True, False])
@pytest.mark.parametrize("version", [None, 4])
def test_export_makes_a_folder_of_a_version(place: Place, tmp_path: Path, with_server: bool, version: int | None):
    """The newest where none is asked for; weights as they were published, config and tokenizer beside them."""
    target = tmp_path / "models" / "out"
    places = place.places if with_server else place.places[2:]
    said = command("export", RUN, *([] if version is None else [str(version)]), str(target), *places)

    made = 7 if version is None else version
    assert said == Said(0, f"{target}: version {made} of run demo, after {made} steps\n")
    assert sorted(each.name for each in target.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert same(map_tensors(target / WEIGHTS_FILE), LINE[made])
    assert [each.name for each in target.parent.iterdir()] == ["out"]


def test_export_overwrites_nothing(place: Place, tmp_path: Path):
    """Not a file of somebody's; an empty folder is none."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "empty").mkdir()

    said = command("export", RUN, str(tmp_path / "full"), *place.places)
    assert said.code == 2 and "nothing is overwritten" in said.words
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    assert command("export", RUN, str(tmp_path / "empty"), *place.places).code == 0


def test_export_leaves_nothing_where_it_fails(place: Place, tmp_path: Path):
    """Half a model would load, and be another."""
    place.damage(0, WEIGHTS_FILE)
    said = command("export", RUN, "2", str(tmp_path / "out"), *place.places)

    assert said.code == 2 and "digest" in said.words
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_a_target_that_somebody_makes_meanwhile_is_left_alone(tmp_path: Path):
    """Two exports into one folder: the first one that is done has it."""
    target = tmp_path / "out"
    with pytest.raises(SeamlessFlowError, match="was made meanwhile"), inventory.part_of(target) as part:
        (part / "a").write_text("ours")
        target.mkdir()
        (target / "b").write_text("theirs")

    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["b"]


def test_what_cannot_be_exported_is_said(place: Place):
    """With what there is instead."""
    for arguments, words in (
        (("9", "out"), "version 9 is not in the store (any more, or without its manifest.json); there are: 0, 1, 2, 3, 4"),
        (("x", "out"), "x is no version"),
        (("²", "out"), "² is no version"),
        (("1", "2", "out"), "expected [VERSION] FOLDER"),
        (("3",), "3 is a version: name the folder, too"),
    ):
        said = command("export", RUN, *arguments, *place.places)
        assert said.code == 2 and words in said.words


def test_a_version_written_twice_is_known_by_the_journal_or_by_what_builds_on_it(place: Place, tmp_path: Path):
    """And by the store alone only while something builds on it."""
    for version in (4, 7):
        publish_folder(
            place.store, weights_path(RUN, version, "late"), {WEIGHTS_FILE: safetensors(LINE[0])}, {"weights_version": version}
        )

    for number, where in enumerate((place.places, place.places[2:])):
        assert command("export", RUN, "4", str(tmp_path / f"v4-{number}"), *where).code == 0
        assert same(map_tensors(tmp_path / f"v4-{number}" / WEIGHTS_FILE), LINE[4])
    assert command("export", RUN, str(tmp_path / "v7"), *place.places).code == 0
    said = command("export", RUN, str(tmp_path / "again"), *place.places[2:])
    assert said.code == 2 and "version 7 was written 2 times" in said.words and "--nats URL" in said.words


def test_an_export_that_a_run_overtakes_begins_again_with_the_newest(place: Place, tmp_path: Path, monkeypatch):
    """By the store alone nobody knows that it reads."""
    fill, tried = inventory.fill, []

    def overtaken(store: Store, run: str, version: int, path: str, part: Path) -> None:
        tried.append(version)
        if len(tried) == 1:
            publish(store, 8, is_full=True)
            store.remove(f"{path}/{MANIFEST}")
        fill(store, run, version, path, part)

    monkeypatch.setattr(inventory, "fill", overtaken)
    said = command("export", RUN, str(tmp_path / "out"), *place.places[2:])

    assert (said.code, tried) == (0, [7, 8])
    assert same(map_tensors(tmp_path / "out" / WEIGHTS_FILE), LINE[8])


def test_a_version_that_is_exported_is_leased(place: Place, tmp_path: Path, monkeypatch):
    """The run goes on, and removes it afterwards."""
    fill, seen = inventory.fill, []

    def looking(*arguments: object) -> None:
        seen.append(json.loads(command("list", RUN, "--json", *place.places).words)["versions"][2]["readers"])
        fill(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(inventory, "fill", looking)

    assert command("export", RUN, "2", str(tmp_path / "out"), *place.places).code == 0
    assert len(seen[0]) == 1
    assert json.loads(command("list", RUN, "--json", *place.places).words)["versions"][2]["readers"] == []
