"""Subject patterns as NATS has them: tokens joined by dots, ``*`` for one token, a last ``>`` for one or more. Pure."""

from __future__ import annotations


def matches(pattern: str, subject: str) -> bool:
    """Whether ``subject`` (no wildcards) falls under ``pattern``."""
    return _match(pattern.split("."), subject.split("."))


def overlaps(one: str, other: str) -> bool:
    """Whether some subject falls under both patterns; a work queue refuses two consumers for which this holds."""
    return _overlap(one.split("."), other.split("."))


def _match(pattern: list[str], tokens: list[str]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted == ">":
            return len(tokens) > index
        if index >= len(tokens) or wanted not in ("*", tokens[index]):
            return False
    return len(tokens) == len(pattern)


def _overlap(one: list[str], other: list[str]) -> bool:
    for left, right in zip(one, other, strict=False):
        if ">" in (left, right):
            return True
        if "*" not in (left, right) and left != right:
            return False
    return len(one) == len(other)
