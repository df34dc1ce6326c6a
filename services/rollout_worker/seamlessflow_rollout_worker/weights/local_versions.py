"""Weights on this machine: complete or not there at all, the last two kept.

A version is made of the newest one here and the changes since, or fetched in full, whichever is fewer bytes
(seamlessflow.weights.fetch_plan).

Calls block; the follower makes them in a thread, while sampling goes on.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from seamlessflow.contracts import WeightsHead
from seamlessflow.errors import Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, fetch_folder, model_path
from seamlessflow.weights.download import DiskTrouble
from seamlessflow.weights.fetch import Held, fetch_version

if TYPE_CHECKING:
    from seamlessflow.tokenization.tokenizer import ChatTokenizer

log = structlog.get_logger()

KEPT_VERSIONS = 2
PARTS = "parts"
"""What arrived of a full file whose rest did not: the next fetch goes on from there, also in the next life of the worker."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A version in a local folder, checked against its digests: each file as it was fetched; after changes, each tensor."""

    weights_version: int
    folder: Path
    fetch_seconds: float

    @property
    def weights_file(self) -> Path:
        """What engines stage and load."""
        return self.folder / WEIGHTS_FILE


class LocalVersions:
    """Versions of one run below ``root``, which belongs to this process alone."""

    def __init__(self, store: Store, run: str, root: Path) -> None:
        self._store, self._run, self._root = store, run, root
        self._fetching = threading.Lock()
        self._given_up = threading.Event()

    def model_is_there(self) -> bool:
        """Whether the trainer has published the model's config and tokenizer. Raises Unavailable."""
        return self._store.exists(f"{model_path(self._run)}/{MANIFEST}")

    def fetch(self, head: WeightsHead) -> Fetched:
        """Bring a version here; the first one may be older than the head, where that one is damaged or gone.

        Raises FileNotFoundError, Unavailable or BadInput; nothing half-fetched gets its name. Unavailable at once while an
        earlier fetch has not noticed yet that it was given up: threads that wait for a store do not pile up.
        """
        if not self._fetching.acquire(blocking=False):
            raise Unavailable("an earlier fetch was given up, and has not come back from the store yet")
        try:
            self._given_up = threading.Event()
            return self._fetch(head, self._given_up)
        finally:
            self._fetching.release()

    def give_up(self) -> None:
        """Let the fetch in progress, if there is one, end soon. From any thread."""
        self._given_up.set()

    def _fetch(self, head: WeightsHead, given_up: threading.Event) -> Fetched:
        began = time.monotonic()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            scratch = self._root / f"fetching-{uuid.uuid4().hex}"
            scratch.mkdir()  # by the umask: engine servers of another user may have to read it
        except OSError as wrong:
            raise DiskTrouble(f"{self._root}: no folder can be made in it: {wrong}; nothing was fetched") from wrong
        try:
            held = self._newest_before(head.weights_version)
            obtained = fetch_version(
                self._store,
                head.path,
                head.weights_version,
                scratch,
                held=held,
                older_will_do=held is None,
                bases=self._root / "bases",
                parts=self._root / PARTS,
                may_link=True,
                should_stop=given_up.is_set,
            )
            if given_up.is_set():  # nobody waits for it; what is here may be in use
                raise Unavailable(f"the fetch of weights version {head.weights_version} was given up")
            folder = self._root / f"{obtained.weights_version:08d}"
            shutil.rmtree(folder, ignore_errors=True)
            scratch.replace(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._forget_old(obtained.weights_version)
        if obtained.weights_version == head.weights_version:
            shutil.rmtree(self._root / PARTS, ignore_errors=True)
        fetched = Fetched(obtained.weights_version, folder, time.monotonic() - began)
        log.info(
            "weights.fetched",
            run=self._run,
            weights_version=fetched.weights_version,
            start=obtained.route.start,
            is_held=obtained.route.is_held,
            num_deltas=len(obtained.route.deltas),
            num_bytes=obtained.route.num_bytes,
            fetch_seconds=fetched.fetch_seconds,
        )
        return fetched

    def add_model(self, fetched: Fetched) -> Path:
        """Config and tokenizer beside the weights: a folder an engine can start from."""
        fetch_folder(self._store, model_path(self._run), fetched.folder)
        return fetched.folder

    def load_tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer. Raises Unavailable, or BadInput when the folder has none that can be used."""
        from seamlessflow.tokenization.tokenizer import ChatTokenizer  # only where there are stop texts

        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tokenizer-", dir=self._root) as scratch:
            try:
                fetch_folder(self._store, model_path(self._run), Path(scratch))
            except FileNotFoundError as wrong:
                raise Unavailable(f"the model of run {self._run} is not in the store {self._store.url} any more") from wrong
            return ChatTokenizer.load(Path(scratch))

    def clear(self) -> None:
        """Remove what an earlier life left, but for parts: each byte of them is checked before it is used."""
        for left in self._root.iterdir() if self._root.is_dir() else ():
            if left.name != PARTS:
                shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):  # there are parts, or it was never there
            self._root.rmdir()

    def _newest_before(self, weights_version: int) -> Held | None:
        """What changes may start from. None: nothing is here yet."""
        here = [version for version in self._here() if version < weights_version]
        return Held(here[-1], self._root / f"{here[-1]:08d}" / WEIGHTS_FILE) if here else None

    def _here(self) -> list[int]:
        return sorted(int(each.name) for each in self._root.iterdir() if each.name.isdigit())

    def _forget_old(self, newest: int) -> None:
        for version in [each for each in self._here() if each <= newest][:-KEPT_VERSIONS]:
            shutil.rmtree(self._root / f"{version:08d}", ignore_errors=True)
