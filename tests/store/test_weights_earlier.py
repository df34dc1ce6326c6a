"""What the release before BLAKE3 left in a store is read, checked, kept and collected as it was by that release."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from seamlessflow.errors import BadInput, Unavailable, WrongBytes  # noqa: E402
from seamlessflow.store.large_payloads import Store  # noqa: E402
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, fetch_folder, model_path, weights_path  # noqa: E402
from seamlessflow.weights.adapters import ADAPTER_FILE  # noqa: E402
from seamlessflow.weights.delta import encode  # noqa: E402
from seamlessflow.weights.fetch import Held, fetch_version  # noqa: E402
from seamlessflow.weights.fetch_plan import Route  # noqa: E402
from seamlessflow.weights.inventory import inventory  # noqa: E402
from seamlessflow.weights.manifest import DELTA_FILE, read_manifest, version_facts  # noqa: E402
from seamlessflow.weights.manifest_folders import publish_folder  # noqa: E402
from seamlessflow.weights.retention import Collection  # noqa: E402
from seamlessflow.weights.safetensors_file import map_tensors, tensor_digests  # noqa: E402
from seamlessflow.weights.verify import Verifier  # noqa: E402
from tests.store.earlier_store import FULL, LORA, MERGED, earlier_store, path_of, tensors_of  # noqa: E402
from tests.store.weights_builders import safetensors, same  # noqa: E402


@pytest.fixture
def earlier(tmp_path: Path) -> Store:
    return earlier_store(tmp_path)


def damage(store: Store, path: str) -> None:
    content = bytearray(store.read(path))
    content[-1] ^= 1
    store.write(path, bytes(content))


def test_its_manifests_have_its_own_digests_and_those_of_ranges(earlier: Store):
    """That is what these tests are about: nothing of the present wrote them."""
    for path in Path(earlier.root).rglob(MANIFEST):
        assert "blake3" not in path.read_text() and "base_digest" not in path.read_text()
    manifest = read_manifest(earlier, path_of(FULL, 0), 0)
    assert manifest.full.algorithm == "sha256" and len(manifest.full.ranges) > 1


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("may_link", [True, False])
def test_a_version_of_it_is_fetched(earlier: Store, tmp_path: Path, version: int, may_link: bool):
    """In full, or with the changes on it, bit for bit."""
    fetch_version(earlier, path_of(FULL, version), version, tmp_path / "here", may_link=may_link)

    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), tensors_of(version))


def test_its_changes_are_made_on_what_is_held_and_checked(earlier: Store, tmp_path: Path):
    """By its digests of tensors, which name no algorithm: what is held and is something else is found out."""
    held = Held(0, tmp_path / "held")
    held.file.write_bytes(safetensors(tensors_of(0)))
    followed = fetch_version(earlier, path_of(FULL, 1), 1, tmp_path / "here", held=held)
    assert followed.route == Route(0, True, (1,), followed.route.num_bytes)
    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), tensors_of(1))

    held.file.write_bytes(safetensors(tensors_of(1)))
    assert not fetch_version(earlier, path_of(FULL, 1), 1, tmp_path / "here", held=held).route.is_held


def test_a_later_version_builds_on_it(earlier: Store, tmp_path: Path):
    """A trainer of now goes on where one of then stopped; its digests and those of then stand beside each other."""
    after = tensors_of(1)
    after["norm"].words[0] += 1
    facts = version_facts(
        weights_version=2, step=2, dtype="bfloat16", base=1, base_path=path_of(FULL, 1), tensors=tensor_digests(after)
    )
    publish_folder(earlier, path_of(FULL, 2), {DELTA_FILE: encode(tensors_of(1), after)}, facts)
    fetch_version(earlier, path_of(FULL, 2), 2, tmp_path / "here")

    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), after)


@pytest.mark.parametrize("may_link", [True, False])
def test_damage_to_it_is_found(earlier: Store, tmp_path: Path, may_link: bool):
    """In the range where it is."""
    damage(earlier, f"{path_of(FULL, 0)}/{WEIGHTS_FILE}")

    with pytest.raises(WrongBytes, match=r"bytes \d+ to \d+ .* do not have the manifest's digest"):
        fetch_version(earlier, path_of(FULL, 0), 0, tmp_path / "here", may_link=may_link)


@pytest.mark.parametrize("run", [FULL, LORA])
def test_it_is_verified_without_a_fault(earlier: Store, tmp_path: Path, run: str):
    """Full versions, changes and adapters; a fault is one as ever."""
    listed = inventory(Collection(earlier, run))
    (tmp_path / "scratch").mkdir()
    verifier = Verifier(earlier, tmp_path / "scratch")
    assert [verifier.verify(each).faults for each in listed] == [()] * len(listed) and listed

    damage(earlier, f"{listed[-1].path}/{DELTA_FILE if run == FULL else ADAPTER_FILE}")
    verifier = Verifier(earlier, tmp_path / "scratch")
    assert [bool(verifier.verify(each).faults) for each in listed] == [False] * (len(listed) - 1) + [True]


def test_what_builds_on_it_keeps_it_and_it_goes_with_that(earlier: Store):
    """Versions of now above it push it out, changes to it hold what they stand on."""
    collection = Collection(earlier, FULL)
    there = [path_of(FULL, 0), path_of(FULL, 1)]
    assert collection.collect(1, []) == []
    for version in range(2, 6):
        tensors = {WEIGHTS_FILE: safetensors(tensors_of(1))}
        facts = version_facts(weights_version=version, step=version, dtype="bfloat16", base=None, tensors=None)
        publish_folder(earlier, weights_path(FULL, version), tensors, facts)
        if version == 4:
            assert collection.collect(version, []) == [], "1 is one of the newest four, and builds on 0"

    assert collection.collect(5, []) == there
    assert not any(earlier.exists(path) for path in there)


def test_its_adapter_is_merged_into_its_base(earlier: Store, tmp_path: Path):
    """The base is named by SHA-256, by an older word in the manifest; it is kept, and read once."""
    first = fetch_version(earlier, path_of(LORA, 0), 0, tmp_path / "here", bases=tmp_path / "bases")
    again = fetch_version(earlier, path_of(LORA, 0), 0, tmp_path / "again", bases=tmp_path / "bases")

    assert again.route.num_bytes < first.route.num_bytes
    for folder in ("here", "again"):
        words = map_tensors(tmp_path / folder / WEIGHTS_FILE)["body.weight"].words
        assert np.array_equal((words.astype(np.uint32) << 16).view(np.float32).reshape(4, 6), MERGED)


def test_another_base_in_its_place_is_refused(earlier: Store, tmp_path: Path):
    """Its adapters belong to the one with that digest."""
    [name] = earlier.folders(f"{LORA}/base")
    publish_folder(earlier, f"{LORA}/base/{name}", {WEIGHTS_FILE: safetensors(tensors_of(0))}, {"base": None})

    with pytest.raises(BadInput, match=f"belongs to the base with digest sha256:{name}"):
        fetch_version(earlier, path_of(LORA, 0), 0, tmp_path / "here")


def test_its_model_folder_is_read_and_checked(earlier: Store, tmp_path: Path):
    """Config and tokenizer of a run that goes on were written when it began."""
    fetch_folder(earlier, model_path(FULL), tmp_path / "model")
    assert (tmp_path / "model" / "config.json").read_text() == '{"vocab_size": 8}'
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "{}"

    damage(earlier, f"{model_path(FULL)}/config.json")
    with pytest.raises(Unavailable, match="do not have the manifest's digest"):
        fetch_folder(earlier, model_path(FULL), tmp_path / "again")
