"""One episode while it runs: its calls from request to answer.

    asked ──▶ planned (parent and suffix known, GenerationRequested)  ──segments, end──▶ answered (a turn of the tree)
      │          └──▶ refused (CallAnswered with an error)
      └── waits for messages or turns that an older event brings

Segments may come in any order and more than once; a turn is made when the end is known and no token is missing.
What a call led to is not kept: the tree and the repeated event give it again.
"""

from __future__ import annotations

import structlog

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
)
from seamlessflow.errors import MalformedMessage
from seamlessflow_trajectory_manager.rendering.base import PROMPT_END_TOKENS, Renderer, Terms
from seamlessflow_trajectory_manager.rendering.chat_template import TemplateRefused

from .call import Asked, Call, End, Segment
from .call_answers import answer_of, call_refused, client_gone, empty_prompt, engine_refused, refusal, too_long
from .messages import History, Messages
from .prefix_match import Conversations
from .prompt_plan import HistoryMode, Plan, Planner
from .raw_prompts import RawPrompts, raw_text
from .tree import Run, Tree, Turn

log = structlog.get_logger()


class Episode:
    """State of one open episode. ``max_context_tokens``: longest prompt plus answer."""

    def __init__(self, renderer: Renderer, max_context_tokens: int, history: HistoryMode = "as_sampled") -> None:
        self.tree = Tree()
        self.calls: dict[str, Call] = {}
        self._renderer = renderer
        self._max_context_tokens = max_context_tokens
        self._planner = Planner(renderer, self.tree, history)
        self._messages = Messages()
        self._conversations = Conversations(self.tree)
        self._raw_prompts = RawPrompts()
        self._names: dict[str, str] = {}
        self._open: set[str] = set()
        """Calls without an answer."""
        self._waiting: dict[str, CallRequested] = {}
        """Calls that are not planned yet, oldest first."""

    def ask(self, event: CallRequested) -> list[Event]:
        """Take in a call; what it and calls that waited for its messages lead to."""
        if event.call not in self.calls:
            self._messages.learn(event.unseen, event.tools)
            self.calls[event.call] = Call(event)
            self._open.add(event.call)
            self._waiting[event.call] = event
        released = self._plan_waiting(event.call)
        own = self._consequence(event)
        return released if own is None else [own, *(each for each in released if each != own)]

    def is_planned(self, call: str) -> bool:
        """Whether a call has led to anything yet."""
        return call in self.calls and call not in self._waiting

    def sampled(self, event: SegmentSampled | GenerationEnded) -> list[Event]:
        """Take in tokens, an end, or both; the answer when nothing is missing any more, and to an end that comes again.

        Empty for an end: tokens are missing. Raises KeyError for an unknown call, MalformedMessage for contradicting tokens.
        """
        call, end = self.calls[event.generation], End.of(event)
        call.bucket = call.bucket if event.bucket is None else event.bucket
        if not call.is_answered:
            if isinstance(event, SegmentSampled):
                self._hold(call, event)
            call.end = end or call.end
        released = self._complete(call)
        answer = None if end is None else self.answer(event.generation)
        return released or ([] if answer is None else [answer])

    def answer(self, name: str) -> CallAnswered | None:
        """What a call was answered with, made again from its turn. None: it is open."""
        call = self.calls[name]
        if call.refusal is not None or call.finish is None:
            return call.refusal
        return self._answer(call, self.tree[name], call.finish)

    def give_up(self, request: CallRequested | Asked) -> CallAnswered:
        """The error for a call that we cannot handle, unless it has an answer; from here on it is not open."""
        call = self.calls.setdefault(request.call, Call(request))
        return self.answer(request.call) or self._refuse(call, call_refused(request.call))

    def runs_of(self, name: str) -> tuple[Run, ...]:
        """Weights versions and token counts of all that was sampled for a call so far."""
        return self.tree[name].versions if name in self.tree else self.calls[name].sampled_runs()

    def _plan_waiting(self, asked: str | None = None) -> list[Event]:
        """What calls lead to that can be planned now, oldest first. Raises what planning ``asked`` failed with.

        Another call that cannot be planned is given up, as it would be by its own event: the others go on.
        """
        released: list[Event] = []
        failed: Exception | None = None
        for request in list(self._waiting.values()):
            try:
                event = self._plan(request)
            except Exception as wrong:
                if request.call == asked:
                    failed = wrong
                    continue
                log.exception("call.given_up", episode=request.episode, call=request.call)
                event = self.give_up(request)
            if event is not None:
                released.append(event)
        if failed is not None:
            raise failed
        return released

    def _plan(self, request: CallRequested) -> Event | None:
        history = self._messages.history(request.messages)
        if history is None or not self._messages.has_tools(request.tools):
            return None
        call, text = self.calls[request.call], raw_text(history)
        try:
            plan = self._plan_turn(request, history) if text is None else self._plan_raw(call, text)
        except TemplateRefused as wrong:
            return self._refuse(call, CallError(status=400, code="invalid_request_error", message=str(wrong)))
        if plan is None:
            return None
        call.parent, call.cause, call.reprefilled_tokens = plan.parent, plan.cause, plan.reprefilled_tokens
        return self._request(call, request, plan.suffix)

    def _plan_turn(self, request: CallRequested, history: History) -> Plan | None:
        """None: it points at a call that is open. Raises TemplateRefused."""
        place = self._conversations.place(history, request.tools, self._open)
        if place is None:
            return None
        self._conversations.asked(request.call, history, place)
        return self._planner.plan(place, history, self._messages.tools(request.tools))

    def _plan_raw(self, call: Call, text: str) -> Plan:
        call.is_raw = True
        parent, new = self._raw_prompts.ask(call.request.call, text)
        return Plan(parent, Int32s(self._renderer.visible.encode(new)))

    def _request(self, call: Call, request: CallRequested, suffix: Int32s) -> Event:
        before = 0 if call.parent is None else self.tree.num_tokens(call.parent)
        call.prompt_tokens = before + len(suffix)
        if not call.prompt_tokens:
            return self._refuse(call, empty_prompt())
        if call.prompt_tokens >= self._max_context_tokens:
            return self._refuse(call, too_long(self._max_context_tokens, call.prompt_tokens))
        call.requested = self._generation(request, call, suffix)
        call.request = Asked.of(request, self._names)
        self._waiting.pop(request.call, None)
        return call.requested

    def _generation(self, request: CallRequested, call: Call, suffix: Int32s) -> GenerationRequested:
        room = self._max_context_tokens - call.prompt_tokens
        return GenerationRequested(
            run=request.run,
            episode=request.episode,
            generation=request.call,
            tag=request.tag,
            bucket=self._bucket_of(request, call),
            shard=request.shard,
            parent=call.parent,
            parent_tokens=call.prompt_tokens - len(suffix),
            suffix=suffix,
            sampling=request.sampling.model_copy(update={"max_tokens": min(request.sampling.max_tokens, room)}),
            stop_token_ids=self._renderer.stop_token_ids,
            stop=request.stop,
            stream=request.stream,
            min_weights_version=request.min_weights_version,
            weights_version=request.weights_version,
            seed=request.seed,
        )

    def _bucket_of(self, request: CallRequested, call: Call) -> int:
        """Where the context of its parent is; a conversation that begins goes where its episode begins."""
        parent = None if call.parent is None else self.calls.get(call.parent)
        if parent is None or parent.bucket is None:
            return request.bucket
        call.bucket = parent.bucket if call.bucket is None else call.bucket
        return parent.bucket

    def _consequence(self, event: CallRequested) -> Event | None:
        """What a request itself led to: a generation, or an error at once. None: it waits."""
        call = self.calls[event.call]
        if call.requested is not None:
            return call.requested
        if event.call in self.tree:
            return self._generation(event, call, self.tree[event.call].suffix)
        return call.refusal

    def _refuse(self, call: Call, error: CallError, finish: GenerationFinish | None = None) -> CallAnswered:
        answer = refusal(call.request, error)
        self._close(call, finish, answer)
        return answer

    def _close(self, call: Call, finish: GenerationFinish | None, error: CallAnswered | None) -> None:
        name = call.request.call
        call.close(finish, error, is_turn=name in self.tree)
        self._open.discard(name)
        self._waiting.pop(name, None)
        self._raw_prompts.drop(name)

    def _hold(self, call: Call, event: SegmentSampled) -> None:
        held = call.segments.setdefault(event.start, Segment.of(event))
        if held.token_ids != event.token_ids:
            raise MalformedMessage(
                f"generation {event.generation} of episode {event.episode} has two different segments at token {event.start}"
            )

    def _complete(self, call: Call) -> list[Event]:
        """The answer, and what it lets go on, if this call has just become complete."""
        if call.is_answered or call.end is None or call.requested is None or not call.has_all_until(call.end):
            return []
        return [self._commit(call, call.requested, call.end.finish), *self._plan_waiting()]

    def _commit(self, call: Call, requested: GenerationRequested, finish: GenerationFinish) -> CallAnswered:
        """The answer to a call that is complete, which becomes a turn where it is one."""
        name = call.request.call
        if finish is GenerationFinish.CONTEXT:
            return self._refuse(call, too_long(self._max_context_tokens, call.prompt_tokens), finish)
        if finish is GenerationFinish.REFUSED:
            return self._refuse(call, engine_refused(name), finish)
        turn = call.turn(requested.suffix)
        if len(turn.sampled) or finish is not GenerationFinish.CANCELLED:
            self.tree.add(turn)
        if finish is GenerationFinish.CANCELLED:
            return self._refuse(call, client_gone(name), finish)
        answer = self._answer(call, turn, finish)
        if call.is_raw:
            visible = self._renderer.visible
            self._raw_prompts.answered(name, visible.text(turn.sampled), visible.written(turn.sampled))
        else:
            self._conversations.answered(name, answer.message)
        self._close(call, finish, None)
        return answer

    def _answer(self, call: Call, turn: Turn, finish: GenerationFinish) -> CallAnswered:
        parsed = self._renderer.parse(turn.sampled, self._terms(call, turn.suffix))
        return answer_of(call.request, turn, parsed, finish, self._renderer.visible, prompt_tokens=call.prompt_tokens)

    def terms_of(self, call: Call) -> Terms:
        """How the ids sampled for a planned call are read."""
        return self._terms(call, self.tree[call.request.call].suffix if call.requested is None else call.requested.suffix)

    def _terms(self, call: Call, suffix: Int32s) -> Terms:
        request = call.request
        tools = self._messages.tools(request.tools) if request.tool_choice != "none" else None
        prompt_end = self.tree.prompt_end(call.parent, suffix, PROMPT_END_TOKENS)
        return Terms(tools=tools, stop=request.stop, prompt_end=prompt_end, is_raw=call.is_raw)
