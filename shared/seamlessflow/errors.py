"""Every error SeamlessFlow raises on purpose, and whether trying again can help.

    SeamlessFlowError
    ├── BadInput               what a person or a peer gave us cannot be used; trying again gives the same answer
    │   ├── ConfigError        a run file or a setting
    │   ├── MalformedMessage   bytes on the bus that are not the event they claim to be
    │   └── MessageTooLarge    an event above the payload limit, headers included
    ├── Refused                the bus said no because somebody else was first
    │   └── SequenceMismatch   an append whose expected last sequence was no longer the last
    └── Unavailable            a peer, a store or the server is away; trying again may help
        └── BusClosed          the connection is closed for good: the process must exit and be restarted

A message says what was expected, what came, whose it was, and what happens now.
"""


class SeamlessFlowError(Exception):
    """Root of all deliberate errors."""


class BadInput(SeamlessFlowError):
    """What was given cannot be used; trying again gives the same answer."""


class ConfigError(BadInput):
    """A run file or a setting that cannot be used; the message says what to set."""


class MalformedMessage(BadInput):
    """Bytes on the bus that are not the event they claim to be."""


class MessageTooLarge(BadInput):
    """An event above the payload limit, headers included."""


class Refused(SeamlessFlowError):
    """The bus said no because somebody else was first."""


class SequenceMismatch(Refused):
    """The expected last sequence of a subject was no longer the last (JetStream error 10071)."""


class Unavailable(SeamlessFlowError):
    """A peer, a store or the server is away; trying again may help."""


class BusClosed(Unavailable):
    """The connection is closed for good: the process must exit and be restarted."""
