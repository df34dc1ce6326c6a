"""Sessions: an episode as the gateway sees it. Whoever has its key is its agent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from seamlessflow.contracts import EpisodeOpened

from ..own_time import OwnTime
from .calls import Call
from .digests import Digests
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
    memory: Memory = field(default_factory=Memory)
    digests: Digests = field(default_factory=Digests)
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
        """The call that a request repeats, so that it is not sampled a second time: the same body, whose answer reached nobody.

        Its client must be gone, or the repetition be marked as one (the other end of a connection can be gone without our
        knowing). An equal body alone proves nothing: best-of-n and compaction loops send one on purpose.
        """
        same = [c for c in reversed(self.calls) if c.body_digest == body_digest and not (c.was_delivered or c.is_abandoned)]
        lost = next((call for call in same if call.has_lost_client), None)
        return lost if lost is not None or num_retries < 1 else next(iter(same), None)


class Sessions:
    """All sessions of a runner, by their key and by their episode."""

    def __init__(self) -> None:
        self._live: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        """Keys by episode, of the live and of the ended."""
        self._ended: dict[str, str] = {}
        """Episodes by key."""

    def open(self, opened: EpisodeOpened, model: str) -> Session:
        """A session with a fresh random key."""
        session = Session(f"sf-{secrets.token_urlsafe(32)}", opened, model)
        self._live[session.key] = session
        self._keys[opened.episode] = session.key
        return session

    def close(self, session: Session) -> tuple[str, ...]:
        """See Session.close."""
        self._live.pop(session.key, None)
        self._ended[session.key] = session.opened.episode
        while len(self._ended) > NUM_REMEMBERED:
            key = next(iter(self._ended))
            episode = self._ended.pop(key)
            if self._keys.get(episode) == key:
                del self._keys[episode]
        return session.close()

    def of(self, headers: Mapping[str, str], who: str | None = None) -> Session:
        """The session of a request. Raises ApiError 401, or 409 when its episode is over.

        who: the ``who`` of a path ``/e/<who>/v1/...``. None: the Bearer or x-api-key says which session. An episode: the key
        must be that episode's. An episode's key, for clients that cannot set one: whatever key they send is ignored.
        """
        key = key_of(headers)
        if who is not None:
            if who in self._live or who in self._ended:
                key = who
            elif not key or self._keys.get(who) != key:
                raise ApiError(
                    401, f"unknown episode, or not its API key, for paths below /e/{who[:80]}", code="invalid_api_key"
                )
        session = self._live.get(key)
        if session is not None:
            return session
        if key in self._ended:
            raise episode_over()
        what = "unknown API key: use the one this agent was started with (OPENAI_API_KEY, ANTHROPIC_API_KEY)"
        raise ApiError(401, what, code="invalid_api_key")


def key_of(headers: Mapping[str, str]) -> str:
    """The key a request brings, as Bearer or x-api-key; empty: none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else headers.get("x-api-key", "")
