"""Hypothesis strategies for records, derived from their fields, so that a new event is tested from its first day."""

from __future__ import annotations

import types
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import settings
from hypothesis import strategies as st
from pydantic import WithJsonSchema
from pydantic.fields import FieldInfo

from seamlessflow.contracts import Float32s, Int32s, Record

few = settings(max_examples=25, deadline=None)
"""Each property goes through all events, so few examples of each are enough; shared cores keep no deadline."""

integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | integers | floats | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: integers,
    float: floats,
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    Any: json_values,
    Int32s: st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8).map(Int32s),
    Float32s: st.lists(st.floats(width=32, allow_nan=False), max_size=8).map(Float32s),
}


def records(kind: type[Record], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Instances of a record; ``fixed`` replaces the strategy of a field."""
    fields = {name: fixed.get(name) or _field(info) for name, info in kind.model_fields.items()}
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


def _field(info: FieldInfo) -> st.SearchStrategy[Any]:
    return _values(info.annotation, tuple(info.metadata))


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(arguments[0], arguments[1:])
    for each in metadata:
        if isinstance(each, WithJsonSchema) and "pattern" in (each.json_schema or {}):
            return st.from_regex(each.json_schema["pattern"].replace("$", r"\Z"), fullmatch=True)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if origin in (Union, types.UnionType):
        return st.one_of([_values(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(_values(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(*map(_values, arguments), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return records(annotation)
    raise TypeError(f"no strategy for {annotation!r}: add one here")
