"""A run's checkpoints: what its journal names, beside what lies in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from seamlessflow.checkpoints.checkpoint_folders import (
    OPTIMIZER_FILE,
    Checkpoint,
    checkpoints_path,
    parse_checkpoint,
    parse_name,
)
from seamlessflow.checkpoints.commit_history import Commit, CommitHistory
from seamlessflow.cli.run_location import reach
from seamlessflow.cli.submit import require_run
from seamlessflow.cli.weights.version_lookup import beside, has_server, store_at
from seamlessflow.client import Client, NoStore
from seamlessflow.errors import ConfigError, WrongBytes
from seamlessflow.redaction import without_password
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import MANIFEST, WEIGHTS_FILE, folder_manifest
from seamlessflow.weights.stored_file import StoredFile


class CheckpointStatus(StrEnum):
    """What a checkpoint is to its run."""

    NEWEST = "newest"
    """Training goes on from it."""
    KEPT = "kept"
    """A rollback may go back to it."""
    OLDER = "older"
    """Named, and not among the kept ones any more: the trainer removes it, or has removed it."""
    ROLLED_BACK = "rolled back"
    """Named, and taken back by a rollback."""
    UNCOMMITTED = "uncommitted"
    """Of the newest line and not named: being written, or its writer died."""
    LATE = "late"
    """Of an older line and never named: nothing reads it, and the next commit removes it."""
    UNEXPLAINED = "unexplained"
    """Complete, under a claim or behind a checkpoint that the journal does not hold: it holds the run."""
    PASSED_OVER = "passed over"
    """Unexplained, and a rollback decided that it counts no more."""
    UNKNOWN = "unknown"
    """Without a server nothing tells."""


COUNTING = (CheckpointStatus.NEWEST, CheckpointStatus.KEPT)


@dataclass(frozen=True, slots=True)
class InStore:
    """A folder in the store."""

    checkpoint: Checkpoint | None
    """None: it is not complete, or ``fault`` says why its manifest cannot be used."""
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    fault: str = ""
    num_bytes: int | None = None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """One checkpoint, named by the journal, or in the store, or both."""

    path: str
    step: int
    line: int | None
    """None: of an earlier release."""
    status: CheckpointStatus
    commit: Commit | None
    """That named it first. None: the journal does not."""
    in_store: InStore | None
    """None: it is not there."""

    @property
    def is_complete(self) -> bool:
        return self.in_store is not None and self.in_store.checkpoint is not None

    @property
    def fault(self) -> str:
        """Why it cannot be restored, as far as its manifest tells. Empty: it is complete."""
        if self.in_store is None:
            return "it is not in the store"
        if self.in_store.fault:
            return self.in_store.fault
        return "" if self.in_store.checkpoint is not None else f"it has no {MANIFEST}"

    @property
    def num_bytes(self) -> int | None:
        return None if self.in_store is None else self.in_store.num_bytes


@dataclass(frozen=True)
class FoundCheckpoints:
    """A run's checkpoints, looked at once: first the journal, then the store."""

    run: str
    store: Store
    client: Client | None
    """None: the store is all that was named."""
    history: CommitHistory
    keep: int
    listed: list[ListedCheckpoint]
    """In journal order, then those that it does not name, by step."""

    @property
    def wanted(self) -> list[ListedCheckpoint]:
        """Those that training may go on from; without a server all that are complete."""
        if self.client is None:
            return [each for each in self.listed if each.is_complete]
        return [each for each in self.listed if each.status in COUNTING]

    def of_step(self, step: int) -> ListedCheckpoint:
        """The newest one of a step that counts, or else that is there. Raises ConfigError, naming the steps there are."""
        of_step = [each for each in reversed(self.listed) if each.step == step and (each.in_store or each in self.wanted)]
        if not of_step:
            there = ", ".join(str(each) for each in sorted({each.step for each in self.wanted}))
            raise ConfigError(f"there is no checkpoint of step {step} (any more); there are: {there or 'none'}")
        return max(of_step, key=lambda each: (each.status in COUNTING, each.commit is not None))


@asynccontextmanager
async def find_checkpoints(run: str, nats: str | None, store: str | None) -> AsyncIterator[FoundCheckpoints]:
    """Raises ConfigError, Unavailable."""
    named = None if store is None else store_at(store)
    if named is not None and not await has_server(run, nats, store):
        found = await _look(run, named, None)
        if not found.listed:
            raise ConfigError(f"there are no checkpoints of run {run!r} in {without_password(named.url)}")
        yield found
        return
    async with reach(run, nats, store) as client:
        await require_run(client, run)
        if isinstance(client.store, NoStore):
            raise ConfigError("checkpoints are in the run's store: give --store URL, the one the services use")
        yield await _look(run, client.store, client)


async def look_again(found: FoundCheckpoints) -> FoundCheckpoints:
    """What there is now."""
    return await _look(found.run, found.store, found.client)


async def _look(run: str, store: Store, client: Client | None) -> FoundCheckpoints:
    history, keep = CommitHistory(), 0
    if client is not None:
        config = await client.requested(run)
        history, keep = await client.commits(run), 0 if config is None else config.checkpoints.keep
    there = await beside(lambda: _in_store(store, run))
    listed = _named(history, keep, there) + _unnamed(history, there, has_journal=client is not None)
    return FoundCheckpoints(run, store, client, history, keep, listed)


def _in_store(store: Store, run: str) -> dict[str, InStore]:
    """By path, lowest step first. Raises Unavailable."""
    folder = checkpoints_path(run)
    paths = [f"{folder}/{name}" for name in store.folders(folder) if parse_name(name) is not None]
    return {path: _folder(store, path) for path in paths}


def _folder(store: Store, path: str) -> InStore:
    try:
        manifest, files = folder_manifest(store, path)
        checkpoint = parse_checkpoint(path, manifest)
    except FileNotFoundError:
        return InStore(None, num_bytes=store.bytes_below(path))
    except WrongBytes as wrong:
        return InStore(None, fault=str(wrong), num_bytes=store.bytes_below(path))
    if lacking := sorted({WEIGHTS_FILE, OPTIMIZER_FILE} - files.keys()):
        return InStore(None, fault=f"its {MANIFEST} does not list {' and '.join(lacking)}", num_bytes=store.bytes_below(path))
    return InStore(checkpoint, files, num_bytes=sum(file.num_bytes for file in files.values()))


def _named(history: CommitHistory, keep: int, there: Mapping[str, InStore]) -> list[ListedCheckpoint]:
    first: dict[str, Commit] = {}
    for commit in history.named:
        first.setdefault(commit.checkpoint, commit)
    surviving, kept = {commit.checkpoint for commit in history.surviving}, set(history.kept(keep))
    newest = _newest(history, there)

    def status(path: str) -> CheckpointStatus:
        if path == newest:
            return CheckpointStatus.NEWEST
        if path not in surviving:
            return CheckpointStatus.ROLLED_BACK
        return CheckpointStatus.KEPT if path in kept else CheckpointStatus.OLDER

    return [
        ListedCheckpoint(path, commit.step, commit.line if commit.has_claim else None, status(path), commit, there.get(path))
        for path, commit in first.items()
    ]


def _newest(history: CommitHistory, there: Mapping[str, InStore]) -> str | None:
    """Path of what training goes on from: of an earlier release's run the highest complete one, as its trainer reads it."""
    named = history.newest
    if named is not None and named.has_claim:
        return named.checkpoint
    earlier = [path for path, folder in there.items() if _line(path) is None and folder.checkpoint is not None]
    return max(earlier, default=None if named is None else named.checkpoint)


def _unnamed(history: CommitHistory, there: Mapping[str, InStore], *, has_journal: bool) -> list[ListedCheckpoint]:
    named = {commit.checkpoint for commit in history.named}
    newest = _newest(history, there) if has_journal else None

    def status(path: str, folder: InStore) -> CheckpointStatus:
        line, checkpoint = _line(path), folder.checkpoint
        if not has_journal:
            return CheckpointStatus.UNKNOWN
        if path == newest:
            return CheckpointStatus.NEWEST
        if history.passes_over(path):
            return CheckpointStatus.PASSED_OVER
        if line is None:  # of an earlier release, under which one of the highest step is taken whether or not it is named
            return CheckpointStatus.LATE
        if checkpoint is not None and not history.knows(nonce=checkpoint.nonce, predecessor=checkpoint.predecessor):
            return CheckpointStatus.UNEXPLAINED
        is_newest_line = history.claim is not None and line >= history.claim.line
        return CheckpointStatus.UNCOMMITTED if is_newest_line else CheckpointStatus.LATE

    return [
        ListedCheckpoint(path, _step(path), _line(path), status(path, folder), None, folder)
        for path, folder in there.items()
        if path not in named
    ]


def _step(path: str) -> int:
    name = parse_name(path.rsplit("/", 1)[-1])
    assert name is not None, "only names of checkpoints are listed"
    return name.step


def _line(path: str) -> int | None:
    name = parse_name(path.rsplit("/", 1)[-1])
    return None if name is None else name.line
