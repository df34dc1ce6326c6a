"""The house keeps its plan: services apart, pure rooms without bus and clock, no import circles, one meaning for a file name.

What is not checked here on purpose: numbers of lines and of files.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("agent_runner", "rollout_worker", "scheduler", "trainer", "trajectory_manager")
SOURCES = (
    ROOT / "shared" / "seamlessflow",
    *(ROOT / "services" / name / f"seamlessflow_{name}" for name in SERVICES),
)

SAME_ROLE = {"__init__", "__main__", "service", "run", "config", "base"}
"""The same part of every service, or of every room."""
SAME_CONCEPT = {"engine", "engine_check", "factory", "options", "pinned_versions", "replay", "samples"}
"""One concept, seen by several: an engine's check by library, worker and trainer; samples as event and as what a tree gives."""

PURE = (
    "seamlessflow_trajectory_manager.trajectory",
    "seamlessflow_scheduler.admission",
    "seamlessflow_scheduler.placement",
    "seamlessflow_scheduler.policy",
    "seamlessflow_rollout_worker.generations.generation_state",
    "seamlessflow_trainer.data.packing",
    "seamlessflow_trainer.algorithms",
)
"""Rooms and modules whose judgement is the same whenever and wherever it is made."""
IMPURE = ("asyncio", "time", "socket", "threading", "nats", "seamlessflow.bus", "seamlessflow.store", "seamlessflow.runtime")


def dotted(path: Path) -> str:
    """The name that a module is imported by."""
    package = next(source for source in SOURCES if source in path.parents)
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for source in SOURCES for path in source.rglob("*.py")}


def targets(name: str, node: ast.Import | ast.ImportFrom, *, is_package: bool) -> Iterator[str]:
    """Full names of the modules that an import may load."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    package = name.split(".") if is_package else name.split(".")[:-1]
    package = package[: len(package) - max(node.level - 1, 0)]
    base = ".".join([*package, *([node.module] if node.module else [])]) if node.level else node.module or ""
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(name: str, path: Path) -> Iterator[str]:
    """What a module imports anywhere: at its start, in functions, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from targets(name, node, is_package=path.name == "__init__.py")


def graph() -> Mapping[str, set[str]]:
    """Each module with those of ours that it imports, and the packages around these, which are imported first."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in MODULES.items():
        for target in imports_of(name, path):
            if target in MODULES and target != name:
                parts = target.split(".")
                loaded = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
                found[name] |= {each for each in loaded & MODULES.keys() if not f"{name}.".startswith(f"{each}.")}
    return found


def test_no_module_imports_itself_by_way_of_others():
    """Modules can be imported in any order, each by itself; types and late imports count, too."""
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as circle:
        pytest.fail(" imports ".join(circle.args[1]))


def test_no_service_imports_another():
    """An image holds exactly one of them; the library knows none."""
    wrong = [
        f"{name} imports {target}"
        for name, targets_of in graph().items()
        for target in targets_of
        if target.startswith("seamlessflow_") and target.split(".")[0] != name.split(".")[0]
    ]
    assert not wrong


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_import_no_bus_and_no_clock(room: str):
    """Time is an argument, and events come in and go out as values."""
    inside = {name: path for name, path in MODULES.items() if name == room or name.startswith(f"{room}.")}
    assert inside, f"{room} is gone: name the room that has its duty now"
    wrong = []
    for name, path in inside.items():
        for target in imports_of(name, path):
            wrong += [f"{name} imports {target}" for bad in IMPURE if f"{target}.".startswith(f"{bad}.")]
    assert not wrong


def test_a_file_name_stands_for_one_thing():
    """Somebody who searches for a file by its name finds one."""
    places = defaultdict(list)
    for name, path in MODULES.items():
        if path.stem not in SAME_ROLE | SAME_CONCEPT:
            places[path.stem].append(name)
    assert {stem: names for stem, names in places.items() if len(names) > 1} == {}
