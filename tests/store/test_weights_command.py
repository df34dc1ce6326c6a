"""``seamlessflow weights``: what holds for all its commands, and what they say of a LoRA run."""

from __future__ import annotations

from pathlib import Path

from seamlessflow.cli.run_location import RUNS, Address, Folder
from seamlessflow.cli.weights import version_lookup
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, adapter_fetch, model_path, publish_folder
from seamlessflow.weights.safetensors_file import map_tensors
from tests.store import adapter_builders as lora
from tests.store.weights_builders import same
from tests.store.weights_place import RUN, Place, command


def test_a_run_that_is_not_there_is_said(place: Place):
    """By the server with the runs there are; by the store with where it looked."""
    for verb, *more in (("list",), ("verify",), ("export", "out"), ("gc",)):
        said = command(verb, "other", *more, *place.places)
        assert said.code == 2 and "run 'other' has no journal on this server; it has demo" in said.words
        said = command(verb, "other", *more, *place.places[2:])
        assert said.code == 2 and "there are no weights of run 'other' in" in said.words


def test_without_a_store_the_weights_are_not_looked_for_elsewhere(place: Place):
    """A server alone does not know where they are."""
    said = command("list", RUN, *place.places[:2])
    assert said.code == 2 and "give --store URL" in said.words


def test_a_store_of_no_kind_is_said(tmp_path: Path, monkeypatch):
    """By name, and before anything is asked."""
    monkeypatch.chdir(tmp_path)
    said = command("list", RUN, "--store", "s4://bucket/runs")
    assert said.code == 2 and "store s4://bucket/runs: Protocol not known: s4" in said.words


def test_a_server_that_is_gone_is_no_hindrance_where_a_store_is_named(place: Place, tmp_path: Path, monkeypatch):
    """A run that lived elsewhere leaves its address here."""
    monkeypatch.setattr(version_lookup, "CONNECT_SECONDS", 0.2)
    Folder(RUNS / RUN).announce(Address("nats://127.0.0.1:1", None, elsewhere=True))

    assert command("export", RUN, str(tmp_path / "out"), *place.places[2:]).code == 0


def test_versions_of_a_lora_run_are_verified_and_exported_merged(store: Store, tmp_path: Path, monkeypatch):
    """They build on no other version, and the base is in the way of no collection."""
    monkeypatch.chdir(tmp_path)
    publish_folder(store, model_path(RUN), {"config.json": b"{}"}, {})
    publish_folder(store, lora.FACTS.base_path, {WEIGHTS_FILE: lora.BASE_FILE}, {"dtype": "bfloat16", "base": None})
    for version in range(6):
        lora.publish(store, version, lora.adapter(version))
    where = ("--store", store.url)
    copyfile, sizes = adapter_fetch.shutil.copyfile, []

    def copied(base: Path, part: Path) -> None:
        copyfile(base, part)
        sizes.append(sum(each.stat().st_size for each in base.parents[2].rglob("*.safetensors*")))

    with monkeypatch.context() as patched:
        patched.setattr(adapter_fetch.shutil, "copyfile", copied)
        assert "read: 6 of 6 versions, faults: 0" in command("verify", RUN, *where).words
    assert max(sizes) < 3 * len(lora.BASE_FILE)  # the room that is asked for, and adapters
    assert command("export", RUN, "2", str(tmp_path / "out"), *where).code == 0
    assert same(map_tensors(tmp_path / "out" / WEIGHTS_FILE), lora.expected(2))
    shown = command("gc", RUN, *where).words
    assert "2 folders" in shown and "adapter" in shown and "builds on" not in shown
    store.remove(f"{lora.FACTS.base_path}/{WEIGHTS_FILE}")
    said = command("verify", RUN, "3", *where)
    assert said.code == 1 and "FAULT  version 3 (adapter" in said.words
