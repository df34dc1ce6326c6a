"""Versions that are adapters, in a store: the base comes once, what is damaged or foreign is refused, no half is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from structlog.testing import capture_logs  # noqa: E402

from seamlessflow.errors import BadInput, Unavailable  # noqa: E402
from seamlessflow.store.large_payloads import Store  # noqa: E402
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, publish_folder, weights_path  # noqa: E402
from seamlessflow.weights.adapter_fetch import ADAPTER_FOLDER  # noqa: E402
from seamlessflow.weights.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterFacts  # noqa: E402
from seamlessflow.weights.digests import digest_of, hex_of  # noqa: E402
from seamlessflow.weights.download import DiskTrouble  # noqa: E402
from seamlessflow.weights.fetch import Obtained, fetch_version  # noqa: E402
from seamlessflow.weights.manifest import read_manifest  # noqa: E402
from seamlessflow.weights.safetensors_file import map_tensors  # noqa: E402
from tests.store.adapter_builders import BASE, BASE_FILE, CONFIG, DIGEST, FACTS, LAYER, RANK, RUN, adapter, expected, publish  # noqa: E402
from tests.store.weights_builders import safetensors, same, tensor  # noqa: E402

NEWEST = 3


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with a base and versions 0..3."""
    publish_folder(store, FACTS.base_path, {WEIGHTS_FILE: BASE_FILE}, {"dtype": "bfloat16", "base": None})
    for version in range(NEWEST + 1):
        publish(store, version, adapter(version))
    return store


@pytest.fixture
def fetch(filled: Store, tmp_path: Path) -> Callable[..., Obtained]:
    """Bring a version into ``tmp_path / "here"``; bases are kept beside it."""

    def fetch_it(version: int, **more: Any) -> Obtained:
        path = weights_path(RUN, version)
        return fetch_version(filled, path, version, tmp_path / "here", **{"bases": tmp_path / "bases", **more})

    return fetch_it


def left(folder: Path) -> list[str]:
    """Files below a folder."""
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_a_version_is_its_base_with_the_adapter_merged(fetch, tmp_path):
    """One file that engines load, and the adapter beside it, where no library takes it for a second one to add."""
    fetch(2)

    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), expected(2))
    assert same(map_tensors(tmp_path / "here" / ADAPTER_FOLDER / ADAPTER_FILE), adapter(2))
    assert json.loads((tmp_path / "here" / ADAPTER_FOLDER / ADAPTER_CONFIG_FILE).read_text()) == CONFIG
    assert left(tmp_path / "here") == [f"adapter/{ADAPTER_CONFIG_FILE}", f"adapter/{ADAPTER_FILE}", WEIGHTS_FILE]


def test_the_base_is_fetched_once_and_stays_as_it_is(fetch, tmp_path):
    """Later versions cost their adapter alone, and do not build on the one before."""
    first, later = fetch(0), fetch(3)
    small = len(safetensors(adapter(3))) + len(json.dumps(CONFIG))

    assert first.route.num_bytes == small + len(BASE_FILE) and later.route.num_bytes == small
    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), expected(3))
    assert same(map_tensors(tmp_path / "bases" / hex_of(BASE_FILE) / WEIGHTS_FILE), BASE)


def test_without_a_place_for_it_the_base_leaves_nothing_behind(fetch, tmp_path):
    """As where a finished run's weights are copied: there is no next version."""
    fetch(1, bases=None)

    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), expected(1))
    assert left(tmp_path / "here") == [f"adapter/{ADAPTER_CONFIG_FILE}", f"adapter/{ADAPTER_FILE}", WEIGHTS_FILE]


def damage(store: Store, path: str) -> None:
    content = bytearray(store.read(path))
    content[-1] ^= 1
    store.write(path, bytes(content))


NAN = tensor("F32", [0x7FC00000] * (20 * RANK), (20, RANK))
OTHER = AdapterFacts(FACTS.base_path, f"blake3:{'ab' * 32}", CONFIG)
DORA = AdapterFacts(FACTS.base_path, DIGEST, {**CONFIG, "use_dora": True})
PATH = weights_path(RUN, 1)


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda store: damage(store, f"{PATH}/{ADAPTER_FILE}"), Unavailable, "do not have the manifest's digest"),
        (lambda store: damage(store, f"{PATH}/{ADAPTER_CONFIG_FILE}"), Unavailable, "do not have the manifest's digest"),
        (lambda store: store.remove(f"{PATH}/{ADAPTER_FILE}"), Unavailable, "not in the store"),
        (lambda store: damage(store, f"{FACTS.base_path}/{WEIGHTS_FILE}"), Unavailable, "do not have the manifest's digest"),
        (lambda store: store.remove(f"{FACTS.base_path}/{MANIFEST}"), Unavailable, "its base .* is not in the store"),
        (lambda store: publish(store, 1, adapter(1), OTHER), BadInput, f"belongs to the base with digest blake3:{'ab' * 32}"),
        (lambda store: publish(store, 1, adapter(1), DORA), BadInput, "sets use_dora"),
        (lambda store: publish(store, 1, adapter(1, rank=3)), BadInput, "of rank 2 the matrices of body must be"),
        (
            lambda store: publish(store, 1, {**adapter(1), f"{LAYER}.lora_B.weight": NAN}),
            BadInput,
            r"lora_B\.weight has values that are NaN",
        ),
        (lambda store: publish(store, 1, adapter(1), listed={**adapter(1), "more": NAN}), BadInput, "has no tensor more"),
    ],
)
def test_what_is_damaged_or_foreign_is_not_loaded(fetch, filled, tmp_path, spoil, error, said):
    """With a reason that names it; no file is left that could be taken for a version."""
    spoil(filled)

    with pytest.raises(error, match=said):
        fetch(1)
    assert left(tmp_path / "here") == []


def test_a_full_disk_is_said_and_leaves_no_version(fetch, tmp_path, monkeypatch):
    """The store is not to blame; the version is tried again later."""

    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seamlessflow.weights.adapter_fetch.shutil.copyfile", full)
    with pytest.raises(DiskTrouble, match=r"weights version 1: .*No space left on device"):
        fetch(1)
    assert left(tmp_path / "here") == []


@pytest.mark.parametrize("name", [ADAPTER_FILE, MANIFEST])
def test_a_newcomer_takes_an_older_adapter_where_the_newest_is_damaged(fetch, filled, tmp_path, name):
    """Each stands on the base alone."""
    filled.write(f"{weights_path(RUN, NEWEST)}/{name}", b"damaged")
    with capture_logs() as logs:
        taken = fetch(NEWEST, older_will_do=True)

    assert taken.weights_version == NEWEST - 1
    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), expected(NEWEST - 1))
    assert "weights.older_taken" in {line["event"] for line in logs}


def test_an_adapter_to_an_adapter_is_refused(fetch, filled, tmp_path):
    """Above all to itself: merging would have no end."""
    digest = digest_of(safetensors(adapter(1)))
    own = AdapterFacts(PATH, digest, CONFIG)
    publish(filled, 1, adapter(1), own)
    manifest = json.loads(filled.read(f"{PATH}/{MANIFEST}"))
    filled.write(f"{PATH}/{MANIFEST}", json.dumps({**manifest, "weights_version": 0}).encode())

    with pytest.raises(BadInput, match="is none"):
        fetch_version(filled, PATH, 0, tmp_path / "here", bases=tmp_path / "bases")
    assert left(tmp_path / "here") == []


def test_an_adapter_counts_as_full(filled):
    """Nothing before it needs to stay, but the base."""
    manifest = read_manifest(filled, weights_path(RUN, 2), 2)

    assert manifest.full == manifest.files[ADAPTER_FILE] and manifest.delta is None
    assert manifest.adapter == FACTS


@pytest.mark.parametrize("change", [{"base_digest": "../../etc"}, {"base_path": 3}, {"config": "x"}, {"base_digest": None}])
def test_a_manifest_whose_adapter_makes_no_sense_is_refused(filled, change):
    """Above all a digest that is none: it names a folder here."""
    document = json.loads(filled.read(f"{PATH}/{MANIFEST}"))
    document["adapter"].update(change)
    filled.write(f"{PATH}/{MANIFEST}", json.dumps(document).encode())

    with pytest.raises(Unavailable, match="is not the manifest of a version"):
        read_manifest(filled, PATH, 1)
