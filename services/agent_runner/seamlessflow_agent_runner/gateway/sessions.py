"""Sessions: an episode as the gateway sees it. Whoever has its key is its agent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from seamlessflow.contracts import EpisodeOpened

from ..own_time import OwnTime
from ..pinning import Pin
from .call import Call
from .digests import Digests
from .errors import ApiError, episode_over
from .memory import Memory

NUM_REMEMBERED = 4096
"""Keys of ended episodes that still get 409 instead of 401."""


@dataclass(eq=False)
class Session:
    """One attempt of an episode."""

    key: str = field(repr=False)
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
    sampled_tokens: int = 0
    """Of all answers so far."""
    pin: Pin | None = None
    """The weights version that it keeps; None: its run's episodes keep none."""

    def close(self) -> tuple[str, ...]:
        """No more calls; those still open are given up. Returns the calls whose answer never reached the agent."""
        self.is_over = True
        undelivered = tuple(call.id for call in self.calls if not call.was_delivered)
        for call in self.calls:
            call.give_up()
        if self.pin is not None:
            self.pin.release()
        return undelivered

    def call_to_join(self, body_digest: bytes, num_retries: int) -> Call | None:
        """The call that a request repeats, so that it is not sampled a second time: the same body, whose answer reached nobody.

        Its clients must be gone, or the repetition be marked as one (the other end of a connection can be gone without our
        knowing). An equal body alone proves nothing: best-of-n and compaction loops send one on purpose. The oldest is first,
        and while its clients look alive an n-th retry joins only a call that fewer than n joined: where several equal calls are
        repeated, each repetition has an answer of its own.
        """
        same = [c for c in self.calls if c.body_digest == body_digest and not (c.was_delivered or c.is_abandoned)]
        for call in same:
            if call.has_lost_client:
                return call
        for call in same:
            if call.num_joins < num_retries:
                call.num_joins += 1
                return call
        return None


class Sessions:
    """All sessions of a runner, by their key and by their episode."""

    def __init__(self) -> None:
        self._live: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        """Keys by episode, of the live and of the ended."""
        self._ended: dict[str, str] = {}
        """Episodes by key."""

    def open(self, opened: EpisodeOpened, model: str, pin: Pin | None = None) -> Session:
        """A session with a fresh random key."""
        session = Session(f"sf-{secrets.token_urlsafe(32)}", opened, model, pin=pin)
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
        keys = keys_of(headers)
        if who is not None:
            if who in self._live or who in self._ended:
                keys = (who,)
            elif (own := self._keys.get(who)) is not None and own in keys:
                keys = (own,)
            else:  # who it was is not repeated: it may be a key but for a letter
                raise ApiError(401, "unknown episode, or not its API key, for paths below /e/", code="invalid_api_key")
        for key in keys:
            if (session := self._live.get(key)) is not None:
                return session
        if any(key in self._ended for key in keys):
            raise episode_over()
        what = (
            "unknown API key: use the one this agent was started with (OPENAI_API_KEY, ANTHROPIC_API_KEY), "
            "or the one that POST /episodes gave"
        )
        raise ApiError(401, what, code="invalid_api_key")


def keys_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The keys a request brings, as Bearer and as x-api-key: some clients fill one of both with a dummy."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return tuple(key for key in (bearer, headers.get("x-api-key", "")) if key)
