"""One episode while it runs: its calls from request to answer.

    asked ──▶ planned (parent and suffix known, GenerationRequested)  ──segments, end──▶ answered (a turn of the tree)
      │          └──▶ refused (CallAnswered with an error)
      └── waits for messages or turns that an older event brings

Segments may come in any order and more than once; a turn is made when the end is known and no token is missing.
"""

from __future__ import annotations

from seamlessflow.contracts import (
    CallAnswered,
    CallError,
    CallRequested,
    Event,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    SegmentSampled,
    Usage,
)
from seamlessflow.errors import MalformedMessage

from .answers import call_refused, engine_refused, finish_reason, message_of, refusal, too_long
from .call import Call
from .identity import Message
from .matching import Conversations, Known, Place, missing_turns
from .rendering import KnownTurn, Renderer
from .template import TemplateRefused
from .tree import Run, Tree


class Episode:
    """State of one open episode. ``max_context_tokens``: longest prompt plus answer."""

    def __init__(self, renderer: Renderer, max_context_tokens: int) -> None:
        self.tree = Tree()
        self.calls: dict[str, Call] = {}
        self._renderer = renderer
        self._max_context_tokens = max_context_tokens
        self._known: dict[str, Known] = {}
        self._tools: dict[str, list[object]] = {}
        self._conversations = Conversations()

    def ask(self, event: CallRequested) -> list[Event]:
        """Take in a call; what it and calls that waited for its messages lead to. Empty: it waits."""
        if event.call not in self.calls:
            self._learn(event)
            self.calls[event.call] = Call(event)
        own = self.calls[event.call]
        released = self._plan_waiting()
        if own.consequence is None:
            return released
        return [own.consequence, *(event for event in released if event is not own.consequence)]

    def sampled(self, event: SegmentSampled) -> list[Event]:
        """Take in tokens; the answer when they were the last ones missing. Raises KeyError for an unknown call."""
        call = self.calls[event.generation]
        if call.answer is not None:
            return []
        held = call.segments.setdefault(event.start, event)
        if held.token_ids != event.token_ids:
            raise MalformedMessage(
                f"generation {event.generation} of episode {event.episode} has two different segments at token {event.start}"
            )
        return self._complete(call)

    def ended(self, event: GenerationEnded) -> list[Event]:
        """Take in an end; the answer. Empty: tokens are missing. Raises KeyError for an unknown call."""
        call = self.calls[event.generation]
        call.ended = event
        released = self._complete(call)
        return released or ([call.answer] if call.answer is not None else [])

    def give_up(self, request: CallRequested) -> CallAnswered:
        """The error for a call that we cannot handle, unless it has an answer; from here on it is not open."""
        call = self.calls.setdefault(request.call, Call(request))
        return call.answer or self._refuse(call, call_refused(request.call))

    def _learn(self, event: CallRequested) -> None:
        for digest, message in event.unseen.items():
            if digest == event.tools:
                self._tools.setdefault(digest, message["tools"])
            else:
                self._known.setdefault(digest, Known.of(message))

    def _plan_waiting(self) -> list[Event]:
        """What calls lead to that can be planned now, oldest first."""
        waiting = [call for call in self.calls.values() if call.consequence is None]
        return [consequence for call in waiting if (consequence := self._plan(call)) is not None]

    def _plan(self, call: Call) -> Event | None:
        request = call.request
        if any(digest not in self._known for digest in request.messages):
            return None
        if request.tools is not None and request.tools not in self._tools:
            return None
        messages = [self._known[digest] for digest in request.messages]
        if missing_turns(messages, self._open()):
            return None
        call.place = self._conversations.place(messages, request.tools)
        try:
            suffix = self._suffix(call, call.place, [known.message for known in messages])
        except TemplateRefused as wrong:
            return self._refuse(call, CallError(status=400, code="invalid_request_error", message=str(wrong)))
        return self._request(call, suffix)

    def _open(self) -> dict[str, Call]:
        return {name: call for name, call in self.calls.items() if call.answer is None}

    def runs_of(self, name: str) -> list[Run]:
        """Weights versions and token counts of all that was sampled for a call so far."""
        if name in self.tree:
            return list(self.tree[name].versions)
        return [(segment.weights_version, len(segment.token_ids)) for segment in self.calls[name].in_order()]

    def _suffix(self, call: Call, place: Place, messages: list[Message]) -> list[int]:
        tools = self._tools[call.request.tools] if call.request.tools is not None else None
        # Examples in an episode's first prompt are no rewritten history.
        call.is_fork = place.num_foreign > 0 and self.tree.num_roots > 0
        if place.parent is not None:
            parent = place.parent
            turn = KnownTurn(lambda: self.tree.prompt_ids(parent), self.tree[parent].sampled, place.num_known)
            suffix = self._renderer.suffix(turn, messages, tools)
            if suffix is not None:
                call.parent = parent
                return suffix
            call.is_fork = True
        return self._renderer.render(messages, tools)

    def _request(self, call: Call, suffix: list[int]) -> Event:
        request = call.request
        parent_tokens = 0 if call.parent is None else self.tree.num_tokens(call.parent)
        call.prompt_tokens = parent_tokens + len(suffix)
        room = self._max_context_tokens - call.prompt_tokens
        if room < 1:
            return self._refuse(call, too_long(self._max_context_tokens, call.prompt_tokens))
        sampling = request.sampling.model_copy(update={"max_tokens": min(request.sampling.max_tokens, room)})
        call.requested = GenerationRequested(
            run=request.run,
            episode=request.episode,
            generation=request.call,
            tag=request.tag,
            bucket=request.bucket,
            shard=request.shard,
            parent=call.parent,
            parent_tokens=parent_tokens,
            suffix=Int32s(suffix),
            sampling=sampling,
            stop_token_ids=self._renderer.stop_token_ids,
            min_weights_version=request.min_weights_version,
            seed=request.seed,
        )
        return call.requested

    def _refuse(self, call: Call, error: CallError) -> CallAnswered:
        call.answer = refusal(call.request, error)
        return call.answer

    def _complete(self, call: Call) -> list[Event]:
        """The answer, and what it lets go on, if this call has just become complete."""
        if call.answer is not None or call.ended is None or call.requested is None or not call.has_all_of(call.ended):
            return []
        call.answer = self._answer(call, call.requested, call.ended)
        return [call.answer, *self._plan_waiting()]

    def _answer(self, call: Call, requested: GenerationRequested, ended: GenerationEnded) -> CallAnswered:
        if ended.finish is GenerationFinish.CONTEXT:
            return refusal(call.request, too_long(self._max_context_tokens, call.prompt_tokens))
        if ended.finish is GenerationFinish.REFUSED:
            return refusal(call.request, engine_refused(call.request.call))
        assert call.place is not None
        turn = call.turn(requested)
        tools = self._tools[call.request.tools] if call.request.tools and call.request.tool_choice != "none" else None
        parsed = self._renderer.parse(turn.sampled, tools)
        message = message_of(parsed, call.request.call)
        self.tree.add(turn)
        call.segments.clear()
        self._conversations.answered(call.request.call, call.place.key, message)
        return CallAnswered(
            run=call.request.run,
            episode=call.request.episode,
            call=call.request.call,
            message=message,
            finish_reason=finish_reason(parsed, ended.finish),
            usage=Usage(prompt_tokens=call.prompt_tokens, completion_tokens=len(turn.sampled)),
        )
