"""What can go wrong with a server of a remote engine. None of these leaves the engine.

ServerFault       it is away, dying or overloaded: the same request may succeed elsewhere, or here later
└ ServerNonsense  its answer cannot be used: it lacks what was asked for, or says what was not
ServerRefusal     it understood and says no (4xx): the same request gets the same answer
"""

from __future__ import annotations


class ServerFault(Exception):
    """A server did not do what it should; it may later."""


class ServerNonsense(ServerFault):
    """An answer that cannot be used."""


class ServerRefusal(Exception):
    """A server says that a request cannot be served."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status
