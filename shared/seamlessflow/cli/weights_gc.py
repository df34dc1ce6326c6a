"""``seamlessflow weights gc``: what of a run's versions nobody needs, and what holds the others back."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from ..errors import ConfigError
from ..weights.keeping import NEWEST, goes, stays
from .weights_found import Found, beside
from .weights_view import bytes_words, plan_table


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
