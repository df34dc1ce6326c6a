"""The messages of one episode, each kept once, packed; the same long one of several episodes once for all of them.

An episode's history is asked for again and again and seldom read: a request names its messages by digest, and what was
rendered before is not rendered again. So a message rests as bytes and is unpacked where it is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, overload
from weakref import WeakValueDictionary

import msgpack

from .message_identity import Message, without_noise

SHARED_BYTES = 256
"""From this size on content is shared between episodes: instructions and tools, which all episodes of an agent have."""


class _Shared:
    """Packed content that lives as long as an episode holds it."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content


_shared: WeakValueDictionary[bytes, _Shared] = WeakValueDictionary()
Packed = bytes | _Shared


def pack(content: object) -> Packed:
    """Content as it rests."""
    packed: bytes = msgpack.packb(content, use_bin_type=True, unicode_errors="surrogatepass")
    if len(packed) < SHARED_BYTES:
        return packed
    shared = _shared.get(packed)
    if shared is None:
        shared = _shared[packed] = _Shared(packed)
    return shared


def unpack(packed: Packed) -> Any:
    """Content as it was."""
    raw = packed if isinstance(packed, bytes) else packed.content
    return msgpack.unpackb(raw, unicode_errors="surrogatepass", strict_map_key=False)


@lru_cache(maxsize=32)
def _tools_of(packed: Packed) -> list[Any]:
    """Tools are read with every request and may be large."""
    tools = unpack(packed)
    return list(tools)


class Messages:
    """By digest. What changes with each request and tells the model nothing is taken out as they come."""

    def __init__(self) -> None:
        self._messages: dict[str, Packed] = {}
        self._tools: dict[str, Packed] = {}
        self._renamed: dict[str, str | None] = {}
        """Digest of a message with noise to that of the one without; None: nothing of it is left."""

    def learn(self, unseen: Mapping[str, Message], tools: str | None) -> None:
        """Take in what a request carries in full. Raises KeyError where ``tools`` are none."""
        for digest, content in unseen.items():
            if digest == tools:
                if digest not in self._tools:
                    self._tools[digest] = pack(content["tools"])
            elif digest not in self._messages and digest not in self._renamed:
                self._learn_message(digest, content)

    def _learn_message(self, digest: str, message: Message) -> None:
        clean = without_noise(message)
        if clean is message:
            self._messages[digest] = pack(message)
        elif clean is None:
            self._renamed[digest] = None
        else:
            packed = pack(clean)
            name = hashlib.sha256(packed if isinstance(packed, bytes) else packed.content).hexdigest()
            self._renamed[digest] = name
            self._messages.setdefault(name, packed)

    def history(self, digests: Sequence[str]) -> History | None:
        """A request's messages without noise. None: one has not come yet."""
        if self._renamed:
            renamed = (self._renamed.get(digest, digest) for digest in digests)
            digests = tuple(digest for digest in renamed if digest is not None)
        return History(digests, self._messages) if all(map(self._messages.__contains__, digests)) else None

    def tools(self, digest: str | None) -> list[Any] | None:
        """Tools offered; to be read only. Raises KeyError for unknown ones."""
        return None if digest is None else _tools_of(self._tools[digest])

    def has_tools(self, digest: str | None) -> bool:
        return digest is None or digest in self._tools


class History(Sequence[Message]):
    """Messages of one request in order, unpacked as they are read."""

    def __init__(self, digests: Sequence[str], messages: Mapping[str, Packed]) -> None:
        self.digests, self._messages = digests, messages

    def __len__(self) -> int:
        return len(self.digests)

    def __iter__(self) -> Iterator[Message]:
        return (unpack(self._messages[digest]) for digest in self.digests)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    def __getitem__(self, index: int | slice) -> Message | History:
        if isinstance(index, slice):
            return History(self.digests[index], self._messages)
        message: Message = unpack(self._messages[self.digests[index]])
        return message
