"""The whole manager over random episodes: what is sampled is trained once or not at all, and what is not is counted.

An agent asks in every way agents do, several calls at a time; engines answer in any order, are cut into segments, refuse,
are cancelled, or are still at it when the episode ends.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import CallAnswered, Event, GenerationEnded, GenerationFinish, GenerationRequested, SegmentSampled
from seamlessflow_trajectory_manager.replay_comparison import consequences_of, replay
from seamlessflow_trajectory_manager.trajectory.episode_end import Ending
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from seamlessflow_trajectory_manager.trajectory.samples import samples_of
from seamlessflow_trajectory_manager.tree_store import pack_tree, unpack_tree
from tests.domain.trajectory_builders import CALC, World, ids_of, joined, renderer, user

WAYS = ("on", "reserialised", "rewritten", "again", "root", "trimmed", "tools", "noisy")
SAID = ("ab", "", "<think>h</think>a", '<tool_call>{"name": "calc", "arguments": {"a":  1}}</tool_call>', "<tool_call>{")
FINISHES = ("stop", "stop", "stop", "length", "refused", "cancelled", "open")

steps = st.lists(
    st.tuples(
        st.sampled_from(WAYS),
        st.integers(min_value=0, max_value=20),
        st.sampled_from(SAID),
        st.sampled_from(FINISHES),
        st.lists(st.integers(min_value=1, max_value=6), max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=9,
)


class Play:
    """An episode that is played step by step. ``told``: logprob of each token the manager heard of, to its call."""

    def __init__(self, manager: Manager, data: st.DataObject) -> None:
        self.world, self.data = World(manager), data
        self.told: dict[float, str] = {}
        self.answers: dict[str, CallAnswered] = {}
        self.asked: list[tuple[list[Any], Any]] = [([user("q")], None)]
        self.histories: list[tuple[list[Any], Any]] = []
        self._open: list[tuple[GenerationRequested, Any]] = []

    def step(self, way: str, choice: int, said: str, finish: str, cuts: list[int], waits: bool) -> None:
        messages, tools = self._messages(way, choice)
        self.asked.append((messages, tools))
        for event in self._tell(self.world.agent.asks(messages, tools)):
            if isinstance(event, GenerationRequested):
                self._open.append((event, (messages, tools, said, finish, cuts)))
        if not waits:
            self.answer_all()

    def _messages(self, way: str, choice: int) -> tuple[list[Any], Any]:
        history, tools = self.histories[choice % len(self.histories)] if self.histories else ([], None)
        if way == "root" or not history:
            return [user(f"root {choice % 3}")], [CALC] if choice % 2 else None
        if way == "again":
            return self.asked[choice % len(self.asked)]
        if way == "reserialised":
            history = [reserialised(message) for message in history]
        if way == "rewritten":
            history = [{"role": m["role"], "content": "other"} if m["role"] == "assistant" else m for m in history]
        if way == "trimmed":
            history = history[1:]
        if way == "noisy":
            history = [{"role": "system", "content": f"x-anthropic-billing-header: {choice}"}, *history]
        if way == "tools":
            tools = None if tools else [CALC]
        return [*history, user(f"more {choice % 2}")], tools

    def answer_all(self) -> None:
        for request, how in self.data.draw(st.permutations(self._open)):
            self._answer(request, *how)
        self._open = []

    def _answer(self, request: GenerationRequested, messages: Any, tools: Any, said: str, finish: str, cuts: Any) -> None:
        ids = ids_of(said if finish == "length" else said + "<|im_end|>")
        _, *segments, ended = self.world.engine.generates(request, ids, cuts=cuts)
        assert isinstance(ended, GenerationEnded)
        if finish in ("refused", "cancelled", "open"):
            segments = segments[:-1]
        told = [segment for segment in segments if isinstance(segment, SegmentSampled)]
        ended = ended.model_copy(update={"num_tokens": sum(len(each.token_ids) for each in told)})
        if finish in ("refused", "cancelled"):
            ended = ended.model_copy(update={"finish": GenerationFinish(finish)})
        events: list[Event] = [*told, *([] if finish == "open" else [ended])]
        if told and finish not in ("open", "refused") and self.data.draw(st.booleans()):
            events = joined(events)
        for repeated in self.data.draw(st.lists(st.integers(min_value=0, max_value=9), max_size=2)) if events else ():
            events.append(events[repeated % len(events)])
        events = self.data.draw(st.permutations(events))
        for each in told:
            self.told |= dict.fromkeys(each.logprobs, request.generation)
        for said_now in [each for event in events for each in self._tell(event)]:
            if isinstance(said_now, CallAnswered):
                self.answers[said_now.call] = said_now
                if said_now.error is None and said_now.call == request.generation:
                    self.histories.append(([*messages, said_now.message], tools))

    def _tell(self, event: Event) -> list[Event]:
        said = consequences_of(self.world.manager, event)
        self.world.journal += [event, *said]
        return said


def reserialised(message: Any) -> Any:
    """As clients bring a turn back: without reasoning, its arguments written anew."""
    kept = {key: value for key, value in message.items() if key != "reasoning_content"}
    if kept.get("tool_calls"):
        calls = [dict(call, function=dict(call["function"])) for call in kept["tool_calls"]]
        for call in calls:
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
        kept["tool_calls"] = calls
    return kept


@pytest.mark.parametrize("history", ["as_sampled", "as_template"])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=steps, data=st.data())
def test_every_sampled_token_is_in_one_span_or_undelivered(history: Any, script: list[Any], data: st.DataObject):
    """Ids, logprobs and versions are the engine's; a sample is what an engine was fed and sampled, to the id."""
    play = Play(Manager(renderer(), 2000, history), data)
    for step in script:
        play.step(*step)
    play.answer_all()
    engine = play.world.engine
    undelivered = data.draw(st.sets(st.sampled_from(sorted(engine.fed)), max_size=2))
    ready = play.world.ends(undelivered=tuple(sorted(undelivered)))
    answered = {call for call, answer in play.answers.items() if answer.error is None}
    streams = {tuple(engine.fed[call] + engine.sampled[call]) for call in answered}
    seen: list[float] = []
    for sample in ready.samples:
        ids = list(sample.token_ids)
        assert tuple(ids) in streams
        positions = [position for start, end in sample.spans for position in range(start, end)]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sample.spans))
        versions = [version for version, count in sample.versions for _ in range(count)]
        for position, logprob, version in zip(positions, sample.logprobs, versions, strict=True):
            call, token, sampled_by = engine.token_of[logprob]
            assert (ids[position], version) == (token, sampled_by) and call in answered - undelivered
            seen.append(logprob)
    assert len(seen) == len(set(seen))
    assert set(seen) == {logprob for logprob, call in play.told.items() if call in answered - undelivered}
    assert (ready.num_sampled, ready.num_undelivered) == (len(play.told), len(play.told) - len(seen))
    assert sum(ready.fork_causes.values()) == ready.num_forks and ready.reprefilled_tokens >= 0


@pytest.mark.parametrize("history", ["as_sampled", "as_template"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=steps, data=st.data())
def test_the_journal_gives_everything_again(history: Any, script: list[Any], data: st.DataObject):
    """A fresh manager says to it what was said, and in the middle each event says again what it said."""
    play = Play(Manager(renderer(), 2000, history), data)
    for step in script:
        play.step(*step)
    play.answer_all()
    manager = play.world.manager
    said = {event.generation: event for event in play.world.journal if isinstance(event, GenerationRequested)}
    for event in [each for each in play.world.journal if type(each).__name__ == "CallRequested"]:
        again = consequences_of(manager, event)
        assert again[:1] == [said.get(event.call) or play.answers[event.call]]
    for name, answer in play.answers.items():
        episode = manager.episode(play.world.agent.episode)
        assert episode is not None and episode.answer(name) == answer
    play.world.ends()
    whole = replay((("", event) for event in play.world.journal), Manager(renderer(), 2000, history))
    assert whole.differences == [] and whole.num_pending == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=steps, data=st.data())
def test_a_finished_tree_rests_packed(script: list[Any], data: st.DataObject):
    """It leaves the manager's memory, gives the same samples from the store, and is judged apart from the manager."""
    play = Play(Manager(renderer(), 2000), data)
    for step in script:
        play.step(*step)
    play.answer_all()
    manager, end = play.world.manager, play.world.agent.ends()
    ending = manager.ending(end, settled=True)
    assert isinstance(ending, Ending)
    judgement = ending.judge()
    assert ending.judge() == judgement
    said = manager.close(ending, judgement)
    assert said[-1] == judgement and manager.apply(end) == said
    assert manager.episode(end.episode) is None and manager.ending(end) is None
    tree = manager.finished_tree(end.episode)
    assert tree is not None
    unpacked = unpack_tree(pack_tree(tree))
    assert samples_of(unpacked) == samples_of(tree)
    assert (unpacked.num_roots, unpacked.fork_causes) == (tree.num_roots, tree.fork_causes)
    assert unpacked.reprefilled_tokens == tree.reprefilled_tokens
