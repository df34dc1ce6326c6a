"""``seamlessflow checkpoints``: what a run can go on from, and whether every byte of it is there."""

from __future__ import annotations

import datetime
import json
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seamlessflow.checkpoints.checkpoint_folders import READS_THAT_AGREE
from seamlessflow.cli.console import make_console
from seamlessflow.cli.options import NatsUrl, RunArgument, StoreUrl, program
from seamlessflow.cli.shutdown import run_to_end
from seamlessflow.cli.weights.version_lookup import beside
from seamlessflow.cli.weights.version_tables import bytes_words
from seamlessflow.errors import Unavailable, WrongBytes
from seamlessflow.redaction import without_password
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.download import check_in_store
from seamlessflow.weights.stored_file import StoredFile

from .checkpoint_lookup import COUNTING, CheckpointStatus, FoundCheckpoints, ListedCheckpoint, find_checkpoints, look_again

app = typer.Typer(no_args_is_help=True, help="The checkpoints of a run, which it goes on from: list them, verify them.")

StepArgument = Annotated[int | None, typer.Argument(min=0, help="Default: all that the run may go on from.")]

WORDS = {
    CheckpointStatus.NEWEST: "newest: the run goes on from it",
    CheckpointStatus.KEPT: "kept",
    CheckpointStatus.OLDER: "older: the next commit removes it",
    CheckpointStatus.ROLLED_BACK: "rolled back",
    CheckpointStatus.UNCOMMITTED: "not committed: being written, or its writer died",
    CheckpointStatus.LATE: "not named by the journal: of a late writer, the next commit removes it",
    CheckpointStatus.UNEXPLAINED: "UNEXPLAINED: the journal does not hold its claim, or the checkpoint before it",
    CheckpointStatus.PASSED_OVER: "not named by the journal: a rollback passed over it",
    CheckpointStatus.UNKNOWN: "whether it counts is in the journal: give --nats URL",
}


@app.command("list")
def list_checkpoints(
    run: RunArgument, nats: NatsUrl = None, store: StoreUrl = None, as_json: Annotated[bool, typer.Option("--json")] = False
) -> None:
    """What the journal names and what is in the store: which one is the newest, which are kept, and what else lies there."""

    async def look() -> FoundCheckpoints:
        async with find_checkpoints(run, nats, store) as found:
            return found

    found = run_to_end(look())
    if as_json:
        print(json.dumps(list_json(found), indent=1))
        return
    console = make_console()
    console.print(checkpoints_table(found))
    _print_advice(found, found.wanted, console)


@app.command()
def verify(run: RunArgument, step: StepArgument = None, nats: NatsUrl = None, store: StoreUrl = None) -> None:
    """Read every byte of the checkpoints that the run may go on from, or of one step's. Nothing is changed.

    Exit code 1 when something is wrong."""

    async def check() -> int:
        async with find_checkpoints(run, nats, store) as found:
            return await verify_checkpoints(found, step, make_console())

    raise typer.Exit(1 if run_to_end(check()) else 0)


def checkpoints_table(found: FoundCheckpoints) -> Table:
    """One row a checkpoint; older ones that the trainer removed are counted below."""
    removed = [each for each in found.listed if each.status is CheckpointStatus.OLDER and each.in_store is None]
    caption = f"{len(removed)} older ones were removed as newer ones were committed" if removed else None
    table = Table(title=f"checkpoints of {escape(found.run)}", caption=caption)
    for column in ("step", "line", "committed", "groups", "bytes", "complete", ""):
        is_number = column in ("step", "line", "groups", "bytes")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for each in found.listed:
        if each in removed:
            continue
        commit = each.commit
        is_wrong = each.status is CheckpointStatus.UNEXPLAINED or (each.status in COUNTING and bool(each.fault))
        table.add_row(
            str(each.step),
            "" if each.line is None else str(each.line),
            "" if commit is None else f"{datetime.datetime.fromtimestamp(commit.time):%Y-%m-%d %H:%M:%S}",
            "" if commit is None else str(len(commit.groups)),
            "" if each.in_store is None else bytes_words(each.num_bytes),
            "yes" if each.is_complete else "no",
            escape(notes(each)),
            style="red" if is_wrong else None,
        )
    return table


def notes(each: ListedCheckpoint) -> str:
    """What there is to tell of a checkpoint."""
    words = WORDS[each.status]
    if each.status in COUNTING and each.fault:
        return f"{words}, and {each.fault}"
    return f"{words}, and removed" if each.in_store is None else words


def list_json(found: FoundCheckpoints) -> dict[str, object]:
    """For programs; all that the journal ever named, removed ones included."""
    return {
        "run": found.run,
        "store": without_password(found.store.url),
        "keep": found.keep if found.client is not None else None,
        "held": None if found.history.held is None else found.history.held.reason,
        "is_over": found.history.is_over if found.client is not None else None,
        "checkpoints": [
            {
                "path": each.path,
                "step": each.step,
                "line": each.line,
                "committed_at": None if each.commit is None else each.commit.time,
                "groups": None if each.commit is None else list(each.commit.groups),
                "num_bytes": each.num_bytes,
                "status": each.status.value,
                "is_in_store": each.in_store is not None,
                "is_complete": each.is_complete,
                "fault": each.fault,
            }
            for each in found.listed
        ],
    }


async def verify_checkpoints(found: FoundCheckpoints, step: int | None, console: Console) -> int:
    """Prints a line for each checkpoint and one for each fault; returns how many faults there are."""
    wanted = found.wanted if step is None else [found.of_step(step)]
    intact: list[ListedCheckpoint] = []
    num_faults = num_gone = 0
    for number, each in enumerate(wanted, 1):
        what = f"step {each.step} ({each.path}, {bytes_words(each.num_bytes)})"
        faults = [f"{each.path}: {each.fault}"] if each.fault else []
        for name, file in sorted({} if each.in_store is None else each.in_store.files.items()):
            with console.status(f"{number} of {len(wanted)}: {what}, {name} ({bytes_words(file.num_bytes)})"):
                fault = await beside(partial(_fault_of, found.store, f"{each.path}/{name}", file))
            faults += [fault] if fault else []
        if faults and await _is_gone(found, each):
            console.print(f"gone   {what}: the run removed it meanwhile", markup=False, soft_wrap=True)
            num_gone += 1
            continue
        for fault in faults:
            console.print(f"FAULT  {what}: {fault}", style="red", markup=False, soft_wrap=True)
        if not faults:
            console.print(f"ok     {what}", markup=False, soft_wrap=True)
            intact.append(each)
        num_faults += len(faults)
    console.print(f"read: {len(wanted) - num_gone} of {len(wanted)} checkpoints, faults: {num_faults}")
    if num_faults:
        console.print(
            "bring the files back as they were, or go back to a checkpoint that is intact", style="yellow", soft_wrap=True
        )
    _print_advice(found, intact, console)
    return num_faults


def _fault_of(store: Store, path: str, file: StoredFile) -> str:
    """What several reads in a row find wrong with a file; empty: nothing. Raises Unavailable where the store is away."""
    fault = ""
    for _ in range(READS_THAT_AGREE):
        fault = _read_once(store, path, file)
        if not fault:
            return ""
    return fault


def _read_once(store: Store, path: str, file: StoredFile) -> str:
    num_bytes = store.num_bytes(path)
    if num_bytes is None and not store.exists(path):
        return f"{path} is not in the store"
    if num_bytes is not None and num_bytes != file.num_bytes:
        return f"{path} has {num_bytes} bytes, and was written with {file.num_bytes}"
    try:
        check_in_store(store, path, file)
    except WrongBytes as wrong:
        return str(wrong)
    except Unavailable:
        if store.exists(path):
            raise
        return f"{path} is not in the store"
    return ""


async def _is_gone(found: FoundCheckpoints, each: ListedCheckpoint) -> bool:
    """Whether it was removed as the run went on: that is no fault."""
    now = {one.path: one for one in (await look_again(found)).listed}
    return each.path not in now or (now[each.path].in_store is None and now[each.path].status not in COUNTING)


def _print_advice(found: FoundCheckpoints, usable: list[ListedCheckpoint], console: Console) -> None:
    """What can be done with the run. ``usable``: what may be gone back to, as far as is known."""
    if found.client is None or found.history.is_over:
        return
    if found.history.held is not None:
        console.print(f"held: {found.history.held.reason}", style="red", markup=False, soft_wrap=True)
    targets = {commit.checkpoint for commit in found.history.targets(found.keep)}
    steps = sorted({each.step for each in usable if each.path in targets and not each.fault})
    if steps:
        again = f"{program()} train --resume {found.run}"
        of = f"STEP is one of {', '.join(map(str, steps))}"
        console.print(f"go on: {again}    go back: {again} --checkpoint STEP ({of})", markup=False, soft_wrap=True)
