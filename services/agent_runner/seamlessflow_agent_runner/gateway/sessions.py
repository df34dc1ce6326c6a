"""Sessions: episodes as the gateway sees them, with their calls. The bearer of an episode's key is its agent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from seamlessflow.contracts import CallAnswered, EpisodeOpened
from seamlessflow_agent_runner.episodes.deadline import OwnTime
from seamlessflow_agent_runner.episodes.pinned_version import Pin

from .answer_wait import AnswerProgress
from .api_errors import ApiError, episode_over
from .previous_responses import PreviousResponses


@dataclass(eq=False, slots=True)
class GatewayCall:
    """One call: its task, its clients, and whether its answer was delivered. Pure, its task aside.

    A call has several clients when a retry joined it while the earlier connection looked alive. It lives as long as its
    session, so it keeps little once its answer is delivered.
    """

    id: str
    body_digest: bytes
    answer: asyncio.Task[CallAnswered] | None = None
    """Goes on when clients leave. None: delivered, and never needed again (``previous_responses`` keeps the turn)."""
    progress: AnswerProgress | None = field(default_factory=AnswerProgress)
    clients: list[asyncio.Transport] = field(default_factory=list)
    """Connections that wait for the answer now; their requests would keep the whole bodies."""
    num_joins: int = 0
    """How many marked retries joined it while its clients looked alive."""
    is_published: bool = False
    """CallRequested stands in the journal."""
    was_delivered: bool = False
    """The whole answer was handed to a connection that was still open."""
    is_abandoned: bool = False
    """Its clients did not come back in time: nothing more is sampled for it."""
    leaving: asyncio.Task[None] | None = None
    """Waits for a client to come back."""

    @property
    def has_lost_client(self) -> bool:
        """No connected client waits for it."""
        return all(client.is_closing() for client in self.clients)

    @property
    def is_answered(self) -> bool:
        """Whether its task has ended, delivered answers included."""
        return self.answer is None or self.answer.done()

    def join(self, client: asyncio.Transport | None) -> None:
        """Add a client that waits. None: it is gone already."""
        if client is not None:
            self.clients.append(client)

    def leave(self, client: asyncio.Transport | None) -> None:
        """Remove a client: it was answered, or left."""
        if client in self.clients:
            self.clients.remove(client)

    def deliver(self) -> None:
        """Its answer reached a client; responses to other clients keep their own references."""
        self.was_delivered = True
        self.answer = self.progress = None

    def give_up(self) -> None:
        """Its session is over: waiting clients get an error, and connections with unread bytes are aborted."""
        if self.answer is not None:
            self.answer.cancel()
        for client in self.clients:
            if client.get_write_buffer_size():
                client.abort()


def digest(content: Any) -> str:
    """Content address of a message or a list of tools: SHA-256 (hex) of its canonical JSON.

    Keys are sorted, without spaces, in UTF-8. Raises ValueError for text that is not Unicode.
    """
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Digests:
    """``digest`` computed once for each content: a conversation repeats its whole history with every call.

    Contents are compared by their msgpack, which is quicker to make and to hash than canonical JSON is.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def of(self, content: Any) -> str:
        """The digest of a content, see ``digest``."""
        key = hashlib.sha256(msgpack.packb(content)).digest()[:16]
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = digest(content)
        return known


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
    calls: list[GatewayCall] = field(default_factory=list)
    previous_responses: PreviousResponses = field(default_factory=PreviousResponses)
    digests: Digests = field(default_factory=Digests)
    time: OwnTime = field(default_factory=OwnTime)
    """Stands still while a call of its waits for an answer."""
    is_over: bool = False
    sampled_tokens: int = 0
    """Of all answers so far."""
    pin: Pin | None = None
    """Its pinned weights version; None: episodes of its run pin none."""

    def close(self) -> tuple[str, ...]:
        """End all open calls. Returns the ids of calls whose answer never reached the agent."""
        self.is_over = True
        undelivered = tuple(call.id for call in self.calls if not call.was_delivered)
        for call in self.calls:
            call.give_up()
        if self.pin is not None:
            self.pin.release()
        return undelivered

    def call_to_join(self, body_digest: bytes, num_retries: int) -> GatewayCall | None:
        """The call that a request repeats, to avoid sampling it twice: of the same body, and its answer was not delivered.

        Its clients must be gone, or the repetition be marked as one (a client may be gone before its connection breaks).
        An equal body alone proves nothing: best-of-n and compaction loops send one on purpose. The oldest is first,
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
        """Keys by episode, of live and ended ones."""
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

        who: the ``who`` of a path ``/e/<who>/v1/...``. None: the Bearer or x-api-key names the session. An episode: the key
        must be that episode's. An episode's key, for clients that cannot set one: whatever key they send is ignored.
        """
        keys = keys_of(headers)
        if who is not None:
            if who in self._live or who in self._ended:
                keys = (who,)
            elif (own := self._keys.get(who)) is not None and own in keys:
                keys = (own,)
            else:  # not repeated in the message: it may be a mistyped key
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
