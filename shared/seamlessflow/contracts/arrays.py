"""Packed arrays: token ids and logprobs travel and rest as little-endian 4-byte values, never as lists of objects.

``Int32s`` and ``Float32s`` are immutable sequences over bytes. They compare by content, cost four bytes an element, and
pydantic accepts bytes, base64 text (JSON) or any sequence of numbers for them.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar, overload

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

Number = TypeVar("Number", int, float)
ITEM_BYTES = 4


class _Packed(Sequence[Number], Generic[Number]):
    """Shared by the two element types; ``typecode`` is the stdlib array's."""

    __slots__ = ("_raw", "_view")
    typecode: str

    def __init__(self, values: Iterable[Number] = ()) -> None:
        packed = array(self.typecode, values)
        if sys.byteorder == "big":
            packed.byteswap()
        self._adopt(packed.tobytes())

    def _adopt(self, raw: bytes) -> None:
        self._raw = raw
        native = raw
        if sys.byteorder == "big":
            swapped = array(self.typecode, raw)
            swapped.byteswap()
            native = swapped.tobytes()
        self._view = memoryview(native).cast(self.typecode)  # type: ignore[call-overload]

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Raises ValueError when the length is not a multiple of four."""
        if len(raw) % ITEM_BYTES:
            raise ValueError(f"expected whole 4-byte elements, got {len(raw)} bytes")
        made = cls.__new__(cls)
        made._adopt(bytes(raw))
        return made

    def to_bytes(self) -> bytes:
        return self._raw

    def __len__(self) -> int:
        return len(self._raw) // ITEM_BYTES

    def __iter__(self) -> Iterator[Number]:
        return iter(self._view.tolist())

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Number | Self:
        if isinstance(index, slice):
            return type(self)(self._view[index].tolist())
        element: Number = self._view[index]
        return element

    def __add__(self, other: Self) -> Self:
        return type(self).from_bytes(self._raw + other._raw)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._raw == self._raw

    def __hash__(self) -> int:
        return hash((self.typecode, self._raw))

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self._view[:6].tolist()))
        return f"{type(self).__name__}[{len(self)}]({shown}{', ...' if len(self) > 6 else ''})"

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, bytes | bytearray):
            return cls.from_bytes(bytes(value))
        if isinstance(value, str):
            return cls.from_bytes(base64.b64decode(value, validate=True))
        if isinstance(value, Iterable):
            try:
                return cls(value)
            except (TypeError, OverflowError) as wrong:
                raise ValueError(f"expected numbers that fit four bytes: {wrong}") from wrong
        raise ValueError(f"expected bytes, base64 text or numbers, got {type(value).__name__}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda packed, info: base64.b64encode(packed.to_bytes()).decode() if info.mode == "json" else packed.to_bytes(),
                info_arg=True,
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        element = "int32" if cls.typecode == "i" else "float32"
        return {
            "type": "string",
            "contentEncoding": "base64",
            "format": f"packed-{element}-le",
            "description": f"packed little-endian {element}; raw bytes in msgpack, base64 in JSON",
        }


class Int32s(_Packed[int]):
    """Packed int32 values, such as token ids."""

    __slots__ = ()
    typecode = "i"


class Float32s(_Packed[float]):
    """Packed float32 values, such as logprobs (nats)."""

    __slots__ = ()
    typecode = "f"
