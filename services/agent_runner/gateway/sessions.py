"""Sessions: an episode as the gateway sees it. Whoever has its key is its agent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from seamlessflow.contracts import EpisodeOpened

from ..own_time import OwnTime
from .calls import Call
from .errors import ApiError, episode_over
from .memory import Memory

NUM_REMEMBERED = 4096
"""Keys of ended episodes that still get 409 instead of 401."""


@dataclass(eq=False)
class Session:
    """One attempt of an episode."""

    key: str
    opened: EpisodeOpened
    model: str
    """Name shown by GET /v1/models. Agents may ask for any name: there is one model."""
    seen: set[str] = field(default_factory=set)
    """Digests that stand in the journal for this episode."""
    calls: list[Call] = field(default_factory=list)
    refusals: dict[str, ApiError] = field(default_factory=dict)
    """By body digest: errors that came after status 200 was sent, for the client's own retry."""
    memory: Memory = field(default_factory=Memory)
    time: OwnTime = field(default_factory=OwnTime)
    """Stands still while a call of its waits for an answer."""
    is_over: bool = False

    def close(self) -> tuple[str, ...]:
        """No more calls; those still open are given up. Returns the calls whose answer never reached the agent."""
        self.is_over = True
        for call in self.calls:
            call.answer.cancel()
        return tuple(call.id for call in self.calls if not call.was_delivered)

    def call_to_join(self, body_digest: str, num_retries: int) -> Call | None:
        """The call that a marked retry of a lost connection means, so that it is not sampled a second time.

        An equal body alone proves nothing: best-of-n and compaction loops send one on purpose.
        """
        if num_retries < 1:
            return None
        lost = (c for c in reversed(self.calls) if c.body_digest == body_digest and not c.was_delivered and c.has_lost_client)
        return next(lost, None)


class Sessions:
    """All sessions of a runner by their key."""

    def __init__(self) -> None:
        self._live: dict[str, Session] = {}
        self._ended: dict[str, None] = {}

    def open(self, opened: EpisodeOpened, model: str) -> Session:
        """A session with a fresh random key."""
        session = Session(f"sf-{secrets.token_urlsafe(32)}", opened, model)
        self._live[session.key] = session
        return session

    def close(self, session: Session) -> tuple[str, ...]:
        """See Session.close."""
        self._live.pop(session.key, None)
        self._ended[session.key] = None
        while len(self._ended) > NUM_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return session.close()

    def of(self, headers: Mapping[str, str]) -> Session:
        """The session of a request by its Bearer or x-api-key. Raises ApiError 401, or 409 when its episode is over."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" and token else headers.get("x-api-key", "")
        session = self._live.get(key)
        if session is not None:
            return session
        if key in self._ended:
            raise episode_over()
        what = "unknown API key: use the one this agent was started with (OPENAI_API_KEY, ANTHROPIC_API_KEY)"
        raise ApiError(401, what, code="invalid_api_key")
