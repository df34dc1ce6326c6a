"""``seamlessflow weights``: of a run that goes on and of one that ended, with a server and without one, on file and S3."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from seamlessflow.blobs import Store
from seamlessflow.bus.server import EmbeddedServer
from seamlessflow.cli import app, weights_found
from seamlessflow.cli.place import RUNS, Address, Folder
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.contracts import RunEnded, WeightsHead, WeightsPublished
from seamlessflow.contracts.routes import WEIGHTS_BUCKET
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime.speaker import Speaker
from seamlessflow.weights import (
    MANIFEST,
    WEIGHTS_FILE,
    adapted,
    exporting,
    model_path,
    publish_folder,
    remove_folder,
    verifying,
    weights_path,
)
from seamlessflow.weights.delta import encode
from seamlessflow.weights.fetching import tensor_digests
from seamlessflow.weights.inventory import Listed
from seamlessflow.weights.manifests import DELTA_FILE, version_facts
from seamlessflow.weights.readers import Reader
from seamlessflow.weights.tensorfile import map_tensors
from tests.store import test_weights_adapters as lora
from tests.store.small_disk import files_of_at_most
from tests.store.weights_builders import Tensors, safetensors, same, stepped, tensor

RUN = "demo"
FULL = (0, 3, 6)
NEWEST = 7
STREAM = np.random.default_rng(0)
FIRST = {"body": tensor("BF16", 0x3E80 + STREAM.integers(0, 128, 3000), (30, 100)), "ids": tensor("I64", range(10))}
LINE: list[Tensors] = list(
    itertools.accumulate(range(NEWEST + 9), lambda now, seed: stepped(now, share=0.03, farthest=2, seed=seed), initial=FIRST)
)


class Said(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    words: str


def command(*arguments: str) -> Said:
    """As from a shell."""
    result = CliRunner().invoke(app, ["weights", *arguments])
    if isinstance(result.exception, SeamlessFlowError):
        return Said(2, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.output)


def path_of(version: int) -> str:
    return weights_path(RUN, version, "a")


def publish(store: Store, version: int, *, is_full: bool = False) -> None:
    """A version as a trainer writes it: its changes, and every so often (or ``is_full``) the whole."""
    now, files, base = LINE[version], {}, None
    if version:
        files[DELTA_FILE], base = encode(LINE[version - 1], now), version - 1
    if is_full or version in FULL:
        files[WEIGHTS_FILE] = safetensors(now)
    facts = version_facts(
        weights_version=version,
        step=version,
        dtype="bfloat16",
        base=base,
        base_path=None if base is None else path_of(base),
        tensors=tensor_digests(now),
    )
    publish_folder(store, path_of(version), files, facts)


async def say_published(client: Client, version: int) -> None:
    path = path_of(version)
    published = WeightsPublished(run=RUN, weights_version=version, step=version, path=path, num_bytes=1, wall_seconds=0.0)
    await Speaker(client.bus, client.store).say(published)
    head = WeightsHead(weights_version=version, step=version, path=path, epoch=0)
    await (await client.bus.kv(WEIGHTS_BUCKET)).put(RUN, pack_record(head))


class Place:
    """A run with versions 0 to 7 in a store, and its server."""

    def __init__(self, store: Store, server: EmbeddedServer) -> None:
        self.store, self.server = store, server
        self.places = ("--nats", server.url, "--store", store.url)

    def do(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Something on the bus, by a client of its own."""

        async def with_client() -> None:
            async with Client.open(self.server.url, self.store.url) as client:
                await work(client)

        asyncio.run(with_client())

    def begin(self) -> None:
        publish_folder(self.store, model_path(RUN), {"config.json": b"{}", "tokenizer.json": b"{}"}, {})
        for version in range(NEWEST + 1):
            publish(self.store, version)

        async def say(client: Client) -> None:
            for spec in run_streams(RUN):
                await client.bus.ensure_stream(spec)
            for version in range(NEWEST + 1):
                await say_published(client, version)

        self.do(say)

    def end(self) -> None:
        async def say(client: Client) -> None:
            await Speaker(client.bus, client.store).say(RunEnded(run=RUN, reason="completed", steps=NEWEST))

        self.do(say)

    def damage(self, version: int, name: str) -> None:
        path = f"{path_of(version)}/{name}"
        content = bytearray(self.store.read(path))
        content[-1] ^= 1
        self.store.write(path, bytes(content))

    @property
    def folders(self) -> list[int]:
        """Numbers of what is in the store."""
        return [int(name.split("-")[0]) for name in self.store.folders(f"{RUN}/weights")]


@pytest.fixture
def place(store: Store, own_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEAMLESSFLOW_NATS_URL", raising=False)
    monkeypatch.delenv("SEAMLESSFLOW_STORE_URL", raising=False)
    made = Place(store, own_server)
    made.begin()
    yield made


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
            place.do(lambda client: say_published(client, 8))
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
    with pytest.raises(SeamlessFlowError, match="was made meanwhile"), exporting.part_of(target) as part:
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
    fill, tried = exporting.fill, []

    def overtaken(store: Store, run: str, version: int, path: str, part: Path) -> None:
        tried.append(version)
        if len(tried) == 1:
            publish(store, 8, is_full=True)
            store.remove(f"{path}/{MANIFEST}")
        fill(store, run, version, path, part)

    monkeypatch.setattr(exporting, "fill", overtaken)
    said = command("export", RUN, str(tmp_path / "out"), *place.places[2:])

    assert (said.code, tried) == (0, [7, 8])
    assert same(map_tensors(tmp_path / "out" / WEIGHTS_FILE), LINE[8])


def test_a_version_that_is_exported_is_leased(place: Place, tmp_path: Path, monkeypatch):
    """The run goes on, and removes it afterwards."""
    fill, seen = exporting.fill, []

    def looking(*arguments: object) -> None:
        seen.append(json.loads(command("list", RUN, "--json", *place.places).words)["versions"][2]["readers"])
        fill(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(exporting, "fill", looking)

    assert command("export", RUN, "2", str(tmp_path / "out"), *place.places).code == 0
    assert len(seen[0]) == 1
    assert json.loads(command("list", RUN, "--json", *place.places).words)["versions"][2]["readers"] == []


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
    monkeypatch.setattr(weights_found, "CONNECT_SECONDS", 0.2)
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
    copyfile, sizes = adapted.shutil.copyfile, []

    def copied(base: Path, part: Path) -> None:
        copyfile(base, part)
        sizes.append(sum(each.stat().st_size for each in base.parents[2].rglob("*.safetensors*")))

    with monkeypatch.context() as patched:
        patched.setattr(adapted.shutil, "copyfile", copied)
        assert "read: 6 of 6 versions, faults: 0" in command("verify", RUN, *where).words
    assert max(sizes) < 3 * len(lora.BASE_FILE)  # the room that is asked for, and adapters
    assert command("export", RUN, "2", str(tmp_path / "out"), *where).code == 0
    assert same(map_tensors(tmp_path / "out" / WEIGHTS_FILE), lora.expected(2))
    shown = command("gc", RUN, *where).words
    assert "2 folders" in shown and "adapter" in shown and "builds on" not in shown
    store.remove(f"{lora.FACTS.base_path}/{WEIGHTS_FILE}")
    said = command("verify", RUN, "3", *where)
    assert said.code == 1 and "FAULT  version 3 (adapter" in said.words
