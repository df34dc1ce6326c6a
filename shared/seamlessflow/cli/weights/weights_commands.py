"""``seamlessflow weights``: the versions of a run in its store. ``weights_found`` looks, ``weights_view`` shows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seamlessflow.cli.console import make_console
from seamlessflow.cli.options import NatsUrl, RunArgument, StoreUrl
from seamlessflow.cli.shutdown import run_to_end
from seamlessflow.errors import ConfigError, SeamlessFlowError
from seamlessflow.weights.inventory import Listed
from seamlessflow.weights.retention import NEWEST

from .version_lookup import Found, beside, find, look_again
from .version_tables import list_json, versions_table
from .weights_maintenance import collect

app = typer.Typer(
    no_args_is_help=True, help="The versions of a run's weights: list them, verify them, export one, remove old ones."
)

TRIES = 3
"""How often an export begins again that was overtaken by the run."""

VersionArgument = Annotated[int | None, typer.Argument(min=0, help="Default: all there are.")]
VersionAndFolder = Annotated[
    list[str], typer.Argument(metavar="[VERSION] FOLDER", help="Which version, by default the newest; and a folder to make.")
]


@app.command("list")
def list_versions(
    run: RunArgument, nats: NatsUrl = None, store: StoreUrl = None, as_json: Annotated[bool, typer.Option("--json")] = False
) -> None:
    """What is in the store: steps, full or changes, bytes, what builds on what, the head, and who reads what."""

    async def look() -> Found:
        async with find(run, nats, store) as found:
            return found

    found = run_to_end(look())
    if as_json:
        print(json.dumps(list_json(found), indent=1))
        return
    console = make_console()
    console.print(versions_table(found))
    for missed in found.readings.missed:
        line = f"{missed.reader} could not have version {missed.weights_version}: {missed.missed}"
        console.print(line, style="yellow", markup=False, soft_wrap=True)


@app.command()
def verify(run: RunArgument, version: VersionArgument = None, nats: NatsUrl = None, store: StoreUrl = None) -> None:
    """Read every byte: digests of files and tensors, NaN, and whether each version can be made of what is there.

    Exit code 1 when something is wrong. Needs room for two full versions in TMPDIR."""
    from .weights_maintenance import verify_versions  # numpy: not for every command

    async def check() -> int:
        async with find(run, nats, store) as found:
            return await verify_versions(found, version, make_console())

    faults = run_to_end(check())
    raise typer.Exit(1 if faults else 0)


@app.command()
def export(run: RunArgument, what: VersionAndFolder, nats: NatsUrl = None, store: StoreUrl = None) -> None:
    """A version as a folder for `from_pretrained`: config, tokenizer and weights, every byte checked. Nothing is overwritten.

    Of a run that is over, and of one that goes on. With --store alone no server is needed."""
    version, folder = _version_and_folder(what)

    async def copy() -> Listed:
        async with find(run, nats, store) as found:
            return await _export(found, version, folder, make_console())

    listed = run_to_end(copy())
    print(f"{folder}: version {listed.weights_version} of run {run}{_step_words(listed)}")


def _version_and_folder(what: list[str]) -> tuple[int | None, Path]:
    if len(what) > 2:
        raise ConfigError(f"expected [VERSION] FOLDER, got {' '.join(what)}")
    if len(what) == 1:
        if what[0].isdecimal():
            raise ConfigError(f"{what[0]} is a version: name the folder, too (or ./{what[0]}, if that is the folder)")
        return None, Path(what[0])
    if not what[0].isdecimal():
        raise ConfigError(f"{what[0]} is no version: they are numbers, as `weights list` shows them")
    return int(what[0]), Path(what[1])


def _step_words(listed: Listed) -> str:
    step = None if listed.manifest is None else listed.manifest.step
    return "" if step is None else f", after {step} steps"


async def _export(found: Found, version: int | None, folder: Path, console: Console) -> Listed:
    from seamlessflow.weights.inventory import check_target, fill, part_of  # numpy: not for every command

    check_target(folder)
    for tries_left in reversed(range(TRIES)):
        listed = found.choose(version)
        try:
            with part_of(folder) as part, console.status(f"version {listed.weights_version} into {folder}"):
                async with found.leased(listed):
                    await beside(partial(fill, found.store, found.run, listed.weights_version, listed.path, part))
            return listed
        except SeamlessFlowError:
            found = await look_again(found)
            if version is not None or not tries_left or found.newest == listed.weights_version:
                raise  # else the run went on meanwhile, and removed what was the newest
        except OSError as wrong:
            raise ConfigError(f"{folder} cannot be written: {wrong}; nothing of it is there") from wrong
    raise AssertionError("the last try returns or raises")


@app.command()
def gc(
    run: RunArgument,
    keep: Annotated[
        int, typer.Option(min=1, help="How many of the newest versions stay; below 4 only of a run that ended.")
    ] = NEWEST,
    delete: Annotated[bool, typer.Option("--delete", help="Remove what is shown. Without it nothing is changed.")] = False,
    nats: NatsUrl = None,
    store: StoreUrl = None,
) -> None:
    """Which versions nobody needs, and what holds the others back; with --delete they are removed.

    What stays: the newest ones, what somebody reads now, and all that those build on. A run does the same after each step;
    this is for what it left. Checkpoints are not touched."""

    async def look() -> None:
        async with find(run, nats, store) as found:
            await collect(found, keep, make_console(), delete=delete)

    run_to_end(look())
