"""Subjects, ids and fences of events: templates of the wiring table, filled in and taken apart again."""

from __future__ import annotations

from functools import cache
from string import Formatter

from seamlessflow.bus.base import Message

from .base import Event, Service
from .routes import BY_EVENT, ROUTES


def inbox_prefix(service: Service) -> str:
    """Where a service's answers and hints arrive. One for each, so that permissions keep them apart."""
    return f"_INBOX_{service.value}"


def subject_of(event: Event) -> str:
    """The subject an event is published on."""
    return _fill(BY_EVENT[type(event)].subject, event)


def message_id_of(event: Event) -> str:
    """The de-duplication id of an event: the same fact has the same id, whichever process repeats it."""
    return f"{event.run}.{_fill(BY_EVENT[type(event)].message_id, event)}"


def kind_of_id(message_id: str) -> type[Event] | None:
    """The kind of event that has such an id. None: no event of a run."""
    return _KIND_BY_ID.get(message_id.split(".")[1]) if "." in message_id else None


def claim_of_commit(message_id: str) -> tuple[int, str]:
    """Line and nonce of the claim that an event on the subject of commits belongs to, from its id."""
    _, line, nonce = message_id.rsplit(".", 2)
    return int(line), nonce


def address(event: Event) -> Message:
    """A message without payload for an event: subject, id, and the fence of events that exist once.

    Of an event that needs a claim it names the subject to compare; the sequence is the claim's to fill in.
    """
    route = BY_EVENT[type(event)]
    compared = route.once or route.claimed
    return Message(
        subject=subject_of(event),
        payload=b"",
        message_id=message_id_of(event),
        expected_last_seq=None if route.once is None else 0,
        expected_subject=None if compared is None else _fill(compared, event),
    )


def subject_filter(event: type[Event], **known: object) -> str:
    """Subject of an event with ``*`` for every field that is not given, for reading it back."""
    by_name = {name: known.get(name.removeprefix("origin."), "*") for name in placeholders(BY_EVENT[event].subject)}
    return wildcards(BY_EVENT[event].subject, **by_name)


def subject_filters(event: type[Event], run: str) -> tuple[str, ...]:
    """Every subject on which a run's journal may hold an event, those of earlier releases included."""
    route = BY_EVENT[event]
    return tuple(wildcards(template, run=run) for template in (route.subject, route.formerly) if template is not None)


def placeholders(template: str) -> list[str]:
    """Names inside a template's braces, in order: ``origin.group`` for ``{origin.group}``."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def wildcards(template: str, **known: object) -> str:
    """A template as a subject filter: known names filled in, ``*`` for every other placeholder."""
    for name in placeholders(template):
        template = template.replace(f"{{{name}}}", str(known.get(name, "*")))
    return template


def _fill(template: str, event: Event) -> str:
    return template.format(**{name: getattr(event, name) for name in type(event).model_fields})


def events_on(subject: str) -> tuple[type[Event], ...]:
    """Events whose template gives this very subject; the most literal template wins."""
    tokens = subject.split(".")
    fitting = [
        (template, event)
        for template, event in _TEMPLATES
        if len(parts := tokens_of(template)) == len(tokens)
        and all(part.startswith("{") or part == token for part, token in zip(parts, tokens, strict=True))
    ]
    most = max((_literals(template) for template, _ in fitting), default=0)
    return tuple(event for template, event in fitting if _literals(template) == most)


def kinds_on(subject: str) -> frozenset[type[Event]]:
    """``events_on``, fast enough for every message of a journal: what matters of a subject are its literal tokens."""
    return _kinds_on(".".join(token if token in _LITERALS else "*" for token in subject.split(".")))


@cache
def _kinds_on(shape: str) -> frozenset[type[Event]]:
    return frozenset(events_on(shape))


def _literals(template: str) -> int:
    return sum(not token.startswith("{") for token in tokens_of(template))


def tokens_of(template: str) -> list[str]:
    """A template between its dots; the one inside ``{origin.group}`` parts no tokens."""
    return template.replace("{origin.", "{").split(".")


_KIND_BY_ID = {route.message_id.split(".")[0]: route.event for route in ROUTES}
_TEMPLATES = [
    (template, route.event) for route in ROUTES for template in (route.subject, route.formerly) if template is not None
]
_LITERALS = frozenset(token for template, _ in _TEMPLATES for token in tokens_of(template) if not token.startswith("{"))


# Subject patterns as NATS has them: tokens joined by dots, ``*`` for one token, a last ``>`` for one or more. Pure.


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
