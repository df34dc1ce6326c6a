"""docs/run-file.md: every key of a run file with its values, its default and its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from seamlessflow.config.run import RunConfig

from .events_page import table

_HEAD = """\
# Run file

Generated from `seamlessflow.config` by `./task schemas`; do not edit.

One TOML file describes a run: `seamlessflow train FILE`. [smollm2.toml](../deploy/demo/smollm2.toml) is a complete one. A wrong
key or value is refused before anything starts, with the key and the values it may have. `[section]` is a TOML table,
`[[section]]` one entry of a list. A section without a required key may be left out; "None" in a meaning is a key that is left
out.
"""
_WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "object": "table"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_REQUIRED = "required"

_Schema = dict[str, Any]


def run_file_document() -> str:
    """The whole page: top-level keys first, then one table for each section."""
    schema = RunConfig.model_json_schema()
    sections = list(_sections(schema, schema["$defs"], ""))
    top = {key: value for key, value in schema["properties"].items() if key not in {path for path, _, _ in sections}}
    parts = ["## Top level", "", *_keys({**schema, "properties": top})]
    for path, is_list, section in sections:
        title = f"[[{path}]]" if is_list else f"[{path}]"
        parts += [f"## {title}", "", _one_line(section["description"]), "", *_keys(section)]
    return _HEAD + "\n" + "\n".join(parts).rstrip() + "\n"


def _sections(owner: _Schema, definitions: _Schema, above: str) -> Iterator[tuple[str, bool, _Schema]]:
    """Path of the table, whether it is a list of tables, and its schema; at any depth."""
    for key, value in owner["properties"].items():
        item = value.get("items", {})
        reference = next((each["$ref"] for each in (value, item, *value.get("anyOf", ())) if "$ref" in each), None)
        if reference is not None:
            section = definitions[reference.rpartition("/")[2]]
            yield f"{above}{key}", bool(item), section
            yield from _sections(section, definitions, f"{above}{key}.")


def _keys(section: _Schema) -> list[str]:
    required = section.get("required", ())
    rows = [
        (f"`{key}`", _values(value), _default(value, key in required), _one_line(value.get("description", "")))
        for key, value in section["properties"].items()
        if not _holds_sections(value)
    ]
    return table(("key", "values", "default", "meaning"), rows)


def _holds_sections(value: _Schema) -> bool:
    return "$ref" in value.get("items", {})


def _values(value: _Schema) -> str:
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        return " or ".join(_values(each) for each in value["anyOf"] if each.get("type") != "null")
    if value.get("type") == "array":
        return f"list of {_values(value['items'])}"
    bounds = [f"{sign} {value[name]:g}" for name, sign in _BOUNDS.items() if name in value]
    return " ".join([_WORDS.get(value.get("type", ""), "any value"), ", ".join(bounds)]).strip()


def _default(value: _Schema, is_required: bool) -> str:
    if is_required:
        return _REQUIRED
    default = value.get("default")
    return "none" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def _one_line(text: str) -> str:
    return " ".join(text.split())
