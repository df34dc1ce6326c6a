"""Generated files: up to date, valid by the rules of their formats, and true of the events they describe."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError

from seamlessflow.config.run import RunConfig, Section
from seamlessflow.contracts import EpisodeStatus, Record
from seamlessflow.contracts.export.__main__ import derived_files, drift, main
from seamlessflow.contracts.export.asyncapi import asyncapi_document, channel_name
from seamlessflow.contracts.export.events_page import events_document
from seamlessflow.contracts.export.field_docs import WORDS, member_meanings
from seamlessflow.contracts.export.json_schema import event_document, event_tag
from seamlessflow.contracts.export.run_file_page import run_file_document
from seamlessflow.contracts.routes import ROUTES
from tests.contracts.strategies import few, records

ROOT = Path(__file__).parents[2]
OFFICIAL = json.loads(Path(__file__).with_name("asyncapi-3.0.0.schema.json").read_text())
EVENTS = [route.event for route in ROUTES]


def test_committed_files_are_what_the_contracts_say():
    """No drift: run ./task schemas after a change of the contracts, and commit."""
    assert drift(ROOT) == []


def test_check_names_what_differs_and_writes_nothing(tmp_path, capsys):
    """--check reports changed, missing and left-over files, and a plain run repairs them."""
    for folder in ("schemas", "docs", "deploy"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "schemas/RunEnded.json").write_text("{}")
    (tmp_path / "schemas/TasksEnded.json").unlink()
    (tmp_path / "schemas/NoLonger.json").write_text("{}")
    wrong = {"schemas/RunEnded.json", "schemas/TasksEnded.json", "schemas/NoLonger.json"}

    assert main(["--check"], tmp_path) == 1
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == wrong
    assert set(drift(tmp_path)) == wrong

    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0


@pytest.mark.parametrize("arguments", [["--chek"], ["--check", "x"]])
def test_a_wrong_argument_is_answered_with_the_usage(arguments, capsys):
    """Nothing is written on a typing mistake."""
    assert main(arguments, ROOT) == 2
    assert "usage" in capsys.readouterr().out


def test_outside_the_project_nothing_is_written(tmp_path, capsys):
    """The files belong below the project's root, not wherever one happens to be."""
    assert main([], tmp_path) == 2
    assert not list(tmp_path.iterdir())
    assert "pyproject.toml is missing" in capsys.readouterr().out


def test_generating_twice_gives_the_same():
    """Nothing in the files depends on hash order or time."""
    assert derived_files() == derived_files()


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_a_schema_is_valid_and_explains_every_field(kind):
    """The schema obeys its dialect, has an identity with a version, and no field is left unexplained."""
    document = event_document(kind)
    Draft202012Validator.check_schema(document)

    assert document["$id"] == f"urn:seamlessflow:event:{kind.__name__}:{kind.version}"
    assert document["description"]
    for part in (document, *document.get("$defs", {}).values()):
        assert part["description"]
        for name, described in part.get("properties", {}).items():
            assert described.get("description"), name


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@few
@given(data=st.data())
def test_every_event_obeys_its_schema(kind, data):
    """What we write as JSON is what the schema promises to programs in other languages."""
    event = data.draw(records(kind))

    Draft202012Validator(event_document(kind)).validate({**event.model_dump(mode="json"), "event": event_tag(kind)})


def test_a_schema_refuses_what_the_reader_refuses():
    """Ids that are no subject tokens, missing fields, wrong types."""
    validator = Draft202012Validator(event_document(next(kind for kind in EVENTS if kind.__name__ == "TaskSubmitted")))
    good = {"run": "r", "task": "t", "env": "e"}
    validator.validate(good)
    for bad in ({"task": "a.b"}, {"run": "ctl"}, {"run": "Upper"}, {"env": ""}, {"prompt": 3}, {"event": "Other/1"}):
        with pytest.raises(ValidationError):
            validator.validate({**good, **bad})
    with pytest.raises(ValidationError):
        validator.validate({"run": "r", "task": "t"})


def test_the_asyncapi_document_obeys_the_official_schema():
    """AsyncAPI tools can read it. The official schema is kept beside this test, so that no network is needed."""
    Draft7Validator(OFFICIAL).validate(asyncapi_document())


def test_the_official_schema_does_refuse_mistakes():
    """The validation above is not an empty one: it reaches channels, operations and messages."""
    for mistake in (
        {"asyncapi": "2.0.0"},
        {"operations": {"x": {"action": "shout", "channel": {"$ref": "#/channels/call"}}}},
        {"channels": {"x": {"address": 3}}},
        {"components": {"messages": {"x": {"payload": {"type": "nonsense"}}}}},
    ):
        with pytest.raises(ValidationError):
            Draft7Validator(OFFICIAL).validate({**asyncapi_document(), **mistake})


def test_every_reference_of_the_asyncapi_document_leads_somewhere():
    """A schema cannot check this."""
    document = asyncapi_document()

    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if isinstance(node.get("$ref"), str) else [])
            for inner in node.values():
                yield from references(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from references(inner)

    found = set(references(document))
    assert found
    for reference in found:
        target = document
        for part in reference.removeprefix("#/").split("/"):
            assert part in target, reference
            target = target[part]


def test_channels_are_named_after_one_subject_each():
    """Two subjects never share a channel name; a channel's parameters are those of its address."""
    assert len({channel_name(route) for route in ROUTES}) == len({route.subject for route in ROUTES})
    for channel in asyncapi_document()["channels"].values():
        in_address = {token[1:-1] for token in channel["address"].split(".") if token.startswith("{")}
        assert in_address == set(channel["parameters"])


def test_the_page_of_events_links_to_every_event():
    """docs/events.md: one row and one heading for each event; every table has as many cells as its head."""
    page = events_document()
    for kind in EVENTS:
        assert f"[{kind.__name__}](#{kind.__name__.lower()})" in page
        assert f"### {kind.__name__}\n" in page
    lines = page.splitlines()
    for line, following in pairwise(lines):
        if line.startswith("|") and following.startswith("|"):
            assert line.replace("\\|", "").count("|") == following.replace("\\|", "").count("|"), following


def test_the_page_of_the_run_file_has_every_key_of_every_section():
    """docs/run-file.md: a heading for each section, a row for each key, with an empty cell nowhere."""
    page = run_file_document()
    headings = {line.strip("# []") for line in page.splitlines() if line.startswith("## [")}

    def keys_of(section, path):
        for key, info in section.model_fields.items():
            sections = [kind for kind in _kinds_in(info.annotation) if issubclass(kind, Section)]
            if sections:
                assert f"{path}{key}" in headings
                yield from keys_of(sections[0], f"{path}{key}.")
            else:
                yield key

    for key in keys_of(RunConfig, ""):
        rows = [line for line in page.splitlines() if line.startswith(f"| `{key}` |")]
        assert rows, key
        assert not any(cell.strip() == "" for row in rows for cell in row.strip("|").split(" | ")), rows


def _kinds_in(annotation):
    inner = get_args(annotation)
    found = [kind for each in inner for kind in _kinds_in(each)]
    return found + ([annotation] if isinstance(annotation, type) and not inner else [])


def test_every_common_word_is_still_used():
    """A word that no field uses any more goes out of the vocabulary."""

    def kinds(kind):
        yield kind
        for below in kind.__subclasses__():
            yield from kinds(below)

    unexplained = {name for kind in kinds(Record) for name, info in kind.model_fields.items() if not info.description}

    assert set(WORDS) == unexplained & set(WORDS)


def test_named_values_are_explained_by_their_docstrings():
    """What stands under an enum's member is what the page says of it."""
    meanings = member_meanings(EpisodeStatus)

    assert list(meanings) == [status.value for status in EpisodeStatus]
    assert meanings["deadline"] == "Killed at its deadline."
