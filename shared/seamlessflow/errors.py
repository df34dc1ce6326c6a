"""Every error SeamlessFlow raises on purpose, and whether trying again can help.

    SeamlessFlowError
    ├── BadInput               what a person or a peer gave us cannot be used; trying again gives the same answer
    │   ├── ConfigError        a run file or a setting
    │   ├── MalformedMessage   bytes on the bus that are not the event they claim to be
    │   └── MessageTooLarge    an event above the payload limit, headers included
    ├── Refused                the bus refused because another writer was first
    │   ├── SequenceMismatch   an append whose expected last sequence was no longer the last
    │   └── Superseded         another claim on the run's commits is newer: what is held is handed back
    ├── Damaged                the store does not have what was written, and several reads agree; trying again does not help
    └── Unavailable            a peer, a store or the server is away; trying again may help
        ├── StoreFault         the store answers, and an object in it is not as it was written
        │   ├── WrongBytes     a read brought other bytes
        │   └── Missing        it is not there
        └── BusClosed          the connection is closed for good: the process must exit and be restarted

A message tells what was expected, what came, whose it was, and what happens now.
"""


class SeamlessFlowError(Exception):
    """Root of all deliberate errors."""


class BadInput(SeamlessFlowError):
    """What was given cannot be used; trying again gives the same answer."""


class ConfigError(BadInput):
    """A run file or a setting that cannot be used; the message names the setting."""


class MalformedMessage(BadInput):
    """Bytes on the bus that are not the event they claim to be."""


class MessageTooLarge(BadInput):
    """An event above the payload limit, headers included."""


class Refused(SeamlessFlowError):
    """The bus refused because another writer was first."""


class SequenceMismatch(Refused):
    """The expected last sequence of a subject was no longer the last (JetStream error 10071)."""


class Superseded(Refused):
    """Another claim on the run's commits is newer than ours: nothing of ours counts any more, and what is held is handed back.

    ``is_closing``: that claim is a scheduler's, which closes the run for good.
    """

    def __init__(self, message: str, *, is_closing: bool = False) -> None:
        super().__init__(message)
        self.is_closing = is_closing


class Damaged(SeamlessFlowError):
    """The store does not have what was written, and several reads agree: trying again does not help, a person has to decide."""


class Unavailable(SeamlessFlowError):
    """A peer, a store or the server is away; trying again may help."""


class StoreFault(Unavailable):
    """The store answers, and an object in it is not as it was written. ``path``: which one."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class WrongBytes(StoreFault):
    """A read brought other bytes than were written. Another read, another copy or a repaired store may help."""


class Missing(StoreFault):
    """The store answers, and does not have an object that it should have."""


class BusClosed(Unavailable):
    """The connection is closed for good: the process must exit and be restarted."""
