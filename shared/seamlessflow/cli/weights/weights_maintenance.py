"""``seamlessflow weights gc``: what of a run's versions nobody needs, and what holds the others back."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from rich.console import Console

from seamlessflow.errors import ConfigError
from seamlessflow.weights.inventory import Listed
from seamlessflow.weights.retention import NEWEST, goes, stays

from .version_lookup import Found, beside, look_again
from .version_tables import bytes_words, plan_table


async def collect(found: Found, keep: int, console: Console, *, delete: bool) -> None:
    """Shows what goes and what stays, and removes it where that is asked. ``found`` was looked at a moment ago.

    Raises ConfigError for less than a run that goes on needs, and for removing what only a server can allow.
    """
    if keep < NEWEST and not found.is_over:
        why = "has not ended" if found.client is not None else "may go on, as far as the store tells"
        raise ConfigError(f"--keep {keep}: run {found.run} {why}, and its workers rely on the newest {NEWEST}")
    if delete and found.client is None:
        raise ConfigError("who reads what, and whether the run goes on, only its server knows: give --nats URL to delete")
    there: dict[int, list[str]] = {}
    for each in found.listed:
        there.setdefault(each.weights_version, []).append(each.path)
    staying = stays(
        there,
        found.collection.manifest_at,
        head=-1 if found.newest is None else found.newest,
        readings=found.readings.reads,
        newest=keep,
        is_over=found.is_over,
        published=found.published,
    )
    going = [path for _, path in goes(there, staying)]
    console.print(plan_table(found, staying))
    size = bytes_words(sum(each.num_bytes or 0 for each in found.listed if each.path in going))
    if not going:
        console.print("nothing to remove")
    elif not delete:
        console.print(f"{len(going)} folders of {size} could go: run it again with --delete")
    else:
        for path in going:
            with console.status(f"removing {path}"):
                await beside(partial(found.collection.remove, path))
        console.print(f"{len(going)} folders of {size} were removed")


# ``seamlessflow weights verify``: read every version of a run, and say of each what came of it.


async def verify_versions(found: Found, version: int | None, console: Console) -> int:
    """Prints a line for each version (None: for all that are complete) and one for each fault; returns how many there are."""
    from seamlessflow.weights.verify import Verifier, line_of  # numpy: not for every command

    complete = [each for each in found.listed if each.manifest is not None]
    wanted = complete if version is None else line_of(found.choose(version), complete)
    faults = _faults_of_run(found) if version is None else []
    for fault in faults:
        console.print(fault, style="red", markup=False, soft_wrap=True)
    num_faults, num_gone = len(faults), 0
    with tempfile.TemporaryDirectory(prefix="seamlessflow-verify-", ignore_cleanup_errors=True) as scratch:
        verifier = Verifier(found.store, Path(scratch))
        for number, listed in enumerate(wanted, 1):
            what = f"version {listed.weights_version} ({listed.kind}, {bytes_words(listed.num_bytes)})"
            with console.status(f"{number} of {len(wanted)}: {what}"):
                async with found.leased(listed):
                    verified = await beside(partial(verifier.verify, listed))
            if verified.faults and await _is_gone(found, listed):
                console.print(f"gone   {what}: the run removed it meanwhile", markup=False, soft_wrap=True)
                num_gone += 1
                continue
            for words in verified.faults:
                console.print(f"FAULT  {what}: {words}", style="red", markup=False, soft_wrap=True)
            if not verified.faults:
                console.print(f"ok     {what}", markup=False, soft_wrap=True)
            num_faults += len(verified.faults)
    console.print(f"read: {len(wanted) - num_gone} of {len(wanted)} versions, faults: {num_faults}")
    return num_faults


def _faults_of_run(found: Found) -> list[str]:
    """Of the run as a whole."""
    faults = [f"FAULT  version {each.weights_version}: {each.fault}" for each in found.listed if each.fault]
    head = found.head
    if head is not None and not any(each.path == head.path and each.manifest is not None for each in found.listed):
        faults.append(f"FAULT  the head is version {head.weights_version}, and {head.path} is not complete in the store")
    return faults


async def _is_gone(found: Found, listed: Listed) -> bool:
    """Whether it was removed as the run went on: that is no fault."""
    now = await look_again(found)
    return now.newest != found.newest and all(each.path != listed.path or each.manifest is None for each in now.listed)
