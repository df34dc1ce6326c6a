"""Finished trees, packed in the store at ``<run>/trees/<episode>``: to be looked at when the manager has long forgotten them.

Nothing depends on them, since the journal has all: one that cannot be written is logged and left out. Never on the event
loop: packing and writing are a thread's work.
"""

from __future__ import annotations

import asyncio
import zlib

import msgpack
import structlog

from seamlessflow.contracts import Float32s, Int32s
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.store.large_payloads import Store

from .trajectory.tree import ForkCause, Tree, Turn

log = structlog.get_logger()

FORMAT = 1
MAX_PENDING = 64
"""Trees that wait for a slow store; more are left out, so that they do not fill the memory."""


def tree_path(run: str, episode: str) -> str:
    """Where an episode's tree is in the store."""
    return f"{run}/trees/{episode}"


def pack_tree(tree: Tree) -> bytes:
    """zlib of msgpack: ``{"format": 1, "turns": [...]}``, parents before children, arrays as in ``contracts.arrays``."""
    turns = [
        {
            "call": turn.call,
            "parent": turn.parent,
            "suffix": turn.suffix.to_bytes(),
            "sampled": turn.sampled.to_bytes(),
            "logprobs": turn.logprobs.to_bytes(),
            "versions": turn.versions,
            "cause": turn.cause,
            "reprefilled_tokens": turn.reprefilled_tokens,
        }
        for turn in tree
    ]
    return zlib.compress(msgpack.packb({"format": FORMAT, "turns": turns}), level=1)


def unpack_tree(packed: bytes) -> Tree:
    """The tree again. Raises ValueError for another format."""
    document = msgpack.unpackb(zlib.decompress(packed))
    if document["format"] != FORMAT:
        raise ValueError(f"expected a tree of format {FORMAT}, got {document['format']}")
    tree = Tree()
    for turn in document["turns"]:
        tree.add(
            Turn(
                turn["call"],
                turn["parent"],
                Int32s.from_bytes(turn["suffix"]),
                Int32s.from_bytes(turn["sampled"]),
                Float32s.from_bytes(turn["logprobs"]),
                [(version, count) for version, count in turn["versions"]],
                None if turn["cause"] is None else ForkCause(turn["cause"]),
                turn["reprefilled_tokens"],
            )
        )
    return tree


class TreeShelf:
    """Writes in the background; ``settled`` waits for what is on its way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: set[asyncio.Task[None]] = set()

    def put(self, run: str, episode: str, tree: Tree) -> None:
        """Begin to write a tree that does not change any more."""
        if len(self._pending) >= MAX_PENDING:
            log.warning("tree.not_kept", episode=episode, reason=f"{MAX_PENDING} others are still being written")
            return
        task = asyncio.create_task(self._write(run, episode, tree))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def settled(self) -> None:
        """Return when nothing is being written."""
        await asyncio.gather(*self._pending)

    async def _write(self, run: str, episode: str, tree: Tree) -> None:
        try:
            await asyncio.to_thread(lambda: self._store.write(tree_path(run, episode), pack_tree(tree)))
        except SeamlessFlowError as wrong:
            log.warning("tree.not_kept", episode=episode, reason=str(wrong))
