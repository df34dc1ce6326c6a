"""What stays of a run's versions, whatever lies in the store; and that nobody loses what he reads, in whatever order.

plain cases, drawn   █ full   ▪ changes   · not complete
properties           any store: what is needed stays, everything else goes
every order          a reader, trainers and collectors, one step of one of them at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import WeightsReading
from seamlessflow.weights.manifest import DELTA_FILE, StoredFile, VersionManifest
from seamlessflow.weights.manifest_folders import WEIGHTS_FILE
from seamlessflow.weights.retention import NEWEST, goes, may_be_read, stays

Manifests = dict[str, VersionManifest | None]
FILE = StoredFile(1, "")


def manifest(version: int, *, full: bool, base: int | None, base_path: str | None = None) -> VersionManifest:
    files = ({WEIGHTS_FILE: FILE} if full else {}) | ({DELTA_FILE: FILE} if base is not None else {})
    return VersionManifest(version, files, base, {}, base_path)


def path_of(version: int, attempt: str = "a") -> str:
    return f"r/weights/{version:08d}-{attempt}"


def drawn(line: str) -> Manifests:
    """Versions 0, 1, 2 … as they are drawn, each building on the one before."""
    return {
        path_of(version): None
        if kind == "·"
        else manifest(version, full=kind == "█", base=version - 1 if version else None, base_path=path_of(version - 1))
        for version, kind in enumerate(line)
    }


def there_of(manifests: Manifests) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in sorted(manifests):
        found.setdefault(int(path.rsplit("/", 1)[1].split("-")[0]), []).append(path)
    return found


def read_by(version: int, path: str = "") -> WeightsReading:
    return WeightsReading(weights_version=version, path=path or path_of(version), reader="worker-1", held_seconds=12.3)


def kept(manifests: Manifests, **how: object) -> set[str]:
    staying = stays(there_of(manifests), lambda path, version: manifests[path], **how)  # type: ignore[arg-type]
    return staying.keys() & manifests.keys()


def versions(paths: Iterable[str]) -> list[int]:
    return sorted(int(path.rsplit("/", 1)[1].split("-")[0]) for path in paths)


@pytest.mark.parametrize(
    ("line", "head", "read", "expected"),
    [
        ("█▪▪▪▪▪▪▪", 7, (), range(8)),
        ("█▪▪█▪▪█▪", 7, (), range(3, 8)),
        ("████████", 7, (), range(4, 8)),
        ("█▪▪▪█▪▪▪█▪▪▪", 11, (), range(8, 12)),
        ("█▪▪▪█▪▪▪█▪▪▪", 11, (2,), (0, 1, 2, 8, 9, 10, 11)),
        ("█▪▪▪█▪▪▪█▪▪▪", 11, (4, 1), (0, 1, 4, 8, 9, 10, 11)),
        ("█▪▪▪█▪▪▪█▪▪▪··", 11, (), range(8, 14)),
        ("█·▪▪█▪▪▪█▪▪▪", 11, (3,), (1, 2, 3, 8, 9, 10, 11)),
    ],
    ids=["deltas", "the line of the fourth", "full", "at the fourth", "a reader", "two", "above the head", "a broken line"],
)
def test_the_newest_stay_and_what_is_read_each_with_what_it_builds_on(line, head, read, expected):
    """Back to a full version, or to where the line is broken: followers may hold what is missing."""
    assert versions(kept(drawn(line), head=head, readings=[read_by(each) for each in read])) == list(expected)


def test_each_folder_that_stays_has_its_reasons_in_words():
    """For people who ask what holds it back."""
    manifests = drawn("█▪▪█▪▪█▪")
    staying = stays(there_of(manifests), lambda path, version: manifests[path], head=6, readings=[read_by(1)])

    assert staying[path_of(7)] == ["above the head: it may be being written"]
    assert staying[path_of(6)] == ["the head", "version 7 builds on it"]
    assert staying[path_of(3)] == ["one of the newest", "version 4 builds on it"]
    assert staying[path_of(1)] == ["read by worker-1 (for 12 s)"]
    assert staying[path_of(0)] == ["version 1 builds on it"]
    assert path_of(2) not in staying


def test_of_two_attempts_the_one_that_is_built_on_stays_once_both_are_old():
    """While they are among the newest nobody can tell which one counts."""
    manifests = drawn("█▪▪▪▪▪▪▪") | {path_of(2, "late"): manifest(2, full=True, base=None)}

    assert path_of(2, "late") in kept(manifests, head=4)
    assert path_of(2, "late") not in kept(manifests, head=7)
    assert path_of(2) in kept(manifests, head=7)


def test_a_base_without_a_path_lies_beside_in_a_folder_of_its_number():
    """As earlier releases wrote it."""
    manifests: Manifests = {
        "r/weights/00000000": manifest(0, full=True, base=None),
        path_of(1): manifest(1, full=False, base=0),
    }
    assert kept(manifests, head=1 + NEWEST, readings=[read_by(1)]) == manifests.keys()


def test_of_a_run_that_ended_nothing_stays_that_was_not_written_to_its_end():
    """Nobody writes any more; what the journal does not name goes, too, and fewer versions may be enough."""
    manifests = drawn("█▪▪▪█▪·") | {path_of(5, "late"): manifest(5, full=True, base=None)}
    over = {"head": 5, "is_over": True, "published": {5: path_of(5)}}

    assert versions(kept(manifests, **over)) == [0, 1, 2, 3, 4, 5]
    assert versions(kept(manifests, **over, newest=1)) == [4, 5]
    assert path_of(5, "late") not in kept(manifests, **over)
    unsaid = {path_of(6): manifest(6, full=True, base=None)}
    assert path_of(6) in kept(manifests | unsaid, head=5)
    assert path_of(6) not in kept(manifests | unsaid, **over)


def test_what_cannot_be_told_is_no_reason_to_remove_anything():
    """A manifest that cannot be read stops the judgement."""

    def away(path: str, version: int) -> VersionManifest | None:
        raise OSError("slow down")

    with pytest.raises(OSError, match="slow down"):
        stays({5: ["p"]}, away, head=5)


@st.composite
def stores(draw: st.DrawFn) -> tuple[Manifests, int]:
    """Any versions, any attempts, some incomplete; the highest that a trainer published is the head."""
    manifests: Manifests = {}
    for version in range(draw(st.integers(0, 14))):
        for attempt in draw(st.sampled_from(["", "a", "a", "a", "ab"])):
            earlier = [path for path in manifests if versions([path])[0] < version]
            base = draw(st.sampled_from([*earlier[-2:], None]))
            is_complete = draw(st.integers(0, 5)) > 0
            full = draw(st.booleans()) or base is None
            number = None if base is None else versions([base])[0]
            manifests[path_of(version, attempt)] = (
                manifest(version, full=full, base=number, base_path=base) if is_complete else None
            )
    head = draw(st.integers(-1, max(versions(manifests), default=-1)))
    return manifests, head


def loadable(path: str, manifests: Manifests) -> bool:
    """Whether a version can be made of what is there, by itself or over what it builds on."""
    found = manifests.get(path)
    if found is None:
        return False
    return found.full is not None or (found.base_path is not None and loadable(found.base_path, manifests))


@given(stores(), st.data())
def test_what_is_read_and_what_is_new_can_be_had_as_before(store, data):
    """And whatever may still be written is where it was."""
    manifests, head = store
    read = data.draw(st.lists(st.sampled_from(sorted(manifests)), max_size=3)) if manifests else []
    stay = kept(manifests, head=head, readings=[read_by(versions([path])[0], path) for path in read])
    after = {path: manifests[path] for path in stay}

    for path in manifests:
        if versions([path])[0] > head - NEWEST:
            assert path in stay
            assert loadable(path, after) == loadable(path, manifests)
    for path in read:
        assert loadable(path, after) == loadable(path, manifests)


@given(stores())
def test_everything_else_goes_and_with_a_head_far_above_all_of_it(store):
    """Orphans included; what remains is what the newest ones need, and nothing twice."""
    manifests, head = store
    stay = kept(manifests, head=head)
    needed = {path for path in manifests if versions([path])[0] > head - NEWEST}
    waiting = list(needed)
    while waiting:
        found = manifests.get(waiting.pop())
        if found is not None and found.full is None and found.base_path is not None and found.base_path not in needed:
            needed.add(found.base_path)
            waiting.append(found.base_path)

    assert stay == needed
    assert kept(manifests, head=head + 100) == set()
    assert kept({path: manifests[path] for path in stay}, head=head) == stay


@given(stores(), st.data())
def test_a_reader_more_never_makes_anything_go(store, data):
    """And what goes is the rest, lowest first."""
    manifests, head = store
    if not manifests:
        return
    path = data.draw(st.sampled_from(sorted(manifests)))
    there = there_of(manifests)
    staying = stays(there, lambda path, version: manifests[path], head=head, readings=[read_by(versions([path])[0], path)])

    assert kept(manifests, head=head) <= staying.keys()
    going = goes(there, staying)
    assert [version for version, _ in going] == sorted(version for version, _ in going)
    assert {path for _, path in going} == manifests.keys() - staying.keys()


# Every order in which these can take their steps: a model of both sides of the protocol, walked through state by state.


@dataclass
class Scene:
    """What all see, and what each remembers."""

    manifests: Manifests
    head: int
    leases: dict[str, int] = field(default_factory=dict)
    reading: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def copied(self) -> Scene:
        return Scene(dict(self.manifests), self.head, dict(self.leases), dict(self.reading), dict(self.known))

    @property
    def key(self) -> tuple[object, ...]:
        """The same for scenes in which the same can happen."""
        parts = (self.leases, self.reading, self.known)
        return (frozenset(self.manifests), self.head, *(tuple(sorted(part.items())) for part in parts))


Step = Callable[[Scene], None]


def reader(name: str, *, looks_again: bool = True) -> list[Step]:
    """Head, lease, head again; then it reads, and what it reads must be there until it lets go."""

    def look(scene: Scene) -> None:
        scene.known[name, "head"] = (scene.head,)

    def lease(scene: Scene) -> None:
        (scene.leases[name],) = scene.known[name, "head"]

    def look_again(scene: Scene) -> None:
        (version,) = scene.known[name, "head"]
        if not looks_again or may_be_read(version, scene.head):
            scene.reading[name] = version

    def let_go(scene: Scene) -> None:
        scene.reading.pop(name, None)
        scene.leases.pop(name)

    return [look, lease, look_again, let_go]


def trainer(num_steps: int) -> list[Step]:
    """Publishes versions, some of them full."""

    def publish(scene: Scene) -> None:
        version = scene.head + 1
        base = version - 1
        scene.manifests[path_of(version)] = manifest(version, full=version % 3 == 0, base=base, base_path=path_of(base))
        scene.head = version

    return [publish] * num_steps


def collector(name: str) -> list[Step]:
    """Knows a head, then reads the leases, then removes. A superseded trainer is one whose head is an old one."""

    def look_at_head(scene: Scene) -> None:
        scene.known[name, "head"] = (scene.head,)

    def look_at_leases(scene: Scene) -> None:
        scene.known[name, "leases"] = tuple(scene.leases.values())

    def remove(scene: Scene) -> None:
        manifests, (head,) = scene.manifests, scene.known[name, "head"]
        readings = [read_by(version) for version in scene.known[name, "leases"]]
        staying = stays(there_of(manifests), lambda path, version: manifests.get(path), head=head, readings=readings)
        for _, path in goes(there_of(manifests), staying):
            del manifests[path]

    return [look_at_head, look_at_leases, remove]


def losses(begin: Scene, actors: list[list[Step]]) -> tuple[int, int]:
    """How many different states there are in all orders, and in how many of them somebody lacks what it reads."""
    waiting, seen, num_lost = [((0,) * len(actors), begin)], set(), 0
    while waiting:
        places, scene = waiting.pop()
        if (places, scene.key) in seen:
            continue
        seen.add((places, scene.key))
        num_lost += not all(loadable(path_of(version), scene.manifests) for version in scene.reading.values())
        for who, steps in enumerate(actors):
            if places[who] < len(steps):
                then = scene.copied()
                steps[places[who]](then)
                waiting.append((tuple(place + (other == who) for other, place in enumerate(places)), then))
    return len(seen), num_lost


@pytest.mark.parametrize(
    "actors",
    [
        [reader("w1"), trainer(NEWEST), collector("c1"), collector("c2")],
        [reader("w1"), reader("w2"), trainer(NEWEST), collector("c1")],
    ],
    ids=["two trainers collect", "two readers"],
)
def test_in_no_order_does_a_reader_lose_what_it_reads(actors):
    """Whoever comes second has seen the other, and no clock was asked."""
    num_states, num_lost = losses(Scene(drawn("█▪▪█▪▪█▪"), head=7), actors)

    assert num_states > 500
    assert num_lost == 0


def test_without_the_second_look_there_are_orders_in_which_it_would():
    """A lease taken after the collector looked: the same search finds it."""
    actors = [reader("w1", looks_again=False), trainer(NEWEST + 1), collector("c1")]

    assert losses(Scene(drawn("█▪▪█▪▪█▪"), head=7), actors)[1] > 0
