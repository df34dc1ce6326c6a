"""The manager: every event's consequence, given again when the event is applied again, from whatever state.

call          generation (budget capped by the context), or 400, or 409 after the end
last token    answer, when the end and all tokens are there, in whatever order they came
end           409 for open calls, then samples or an evaluation
too early     NotYet: remembered, and judged when what is missing comes
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import (
    CallAnswered,
    EpisodeEvaluated,
    EpisodeStatus,
    Event,
    Float32s,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    SamplesReady,
    SegmentSampled,
)
from seamlessflow.errors import MalformedMessage
from seamlessflow_trajectory_manager.rendering.chat_template import ChatTemplate
from seamlessflow_trajectory_manager.rendering.template_renderer import TemplateRenderer
from seamlessflow_trajectory_manager.replay_comparison import HEARD, SAID, consequences_of, replay
from seamlessflow_trajectory_manager.trajectory.manager import Manager, NotYet
from tests.domain.trajectory_builders import (
    CALC,
    EPISODE,
    ORIGIN,
    World,
    digest_of,
    joined,
    manager,
    renderer,
    tokenizer,
    user,
)

TOOL_CALL = '<tool_call>{"name": "calc", "arguments": {"expression": "3+4"}}</tool_call>'


@pytest.fixture
def world() -> World:
    return World()


def test_a_call_becomes_a_generation_and_its_end_an_answer(world: World):
    """The plain course: prompt, stop tokens and seed go to the engine, text comes back."""
    (request,) = world.tells(world.agent.asks([user("q")], seed=11, min_weights_version=2))
    assert isinstance(request, GenerationRequested)
    assert list(request.suffix) == renderer().render([user("q")], None)
    assert request.stop_token_ids == (tokenizer().eos_token_id,)
    assert (request.seed, request.min_weights_version, request.parent, request.sampling.max_tokens) == (11, 2, None, 256)
    assert request.weights_version is None


def test_a_call_of_an_episode_that_keeps_its_version_asks_for_it_by_its_slot_again_and_again():
    """The runner decided; whoever folds the journal afterwards says the same."""
    world = World()
    asked = world.agent.asks([user("q")], tag="rollout+v2", weights_version=6)
    (request,) = world.tells(asked)

    assert (request.weights_version, request.tag) == (6, "rollout+v2")
    assert world.manager.apply(asked) == [request]
    answer = world.answers(request, "seven")
    assert answer.message == {"role": "assistant", "content": "seven"}
    assert answer.finish_reason == "stop" and answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(request.suffix), len("seven") + 1)


def test_a_turn_without_a_stop_token_finishes_by_length(world: World):
    """The budget was used up."""
    answer = world.turn([user("q")], tokenizer().encode("seve"))
    assert (answer.finish_reason, answer.message["content"]) == ("length", "seve")


def test_tool_calls_carry_an_id_that_points_at_the_turn(world: World):
    """Clients bring it back byte for byte."""
    answer = world.turn([user("3+4?")], TOOL_CALL, tools=[CALC])
    (call,) = answer.message["tool_calls"]
    assert call["id"] == f"call_{answer.call}_0" and answer.finish_reason == "tool_calls"
    assert call["function"] == {"name": "calc", "arguments": '{"expression": "3+4"}'}
    assert answer.message["content"] is None


def test_tool_choice_none_makes_no_calls(world: World):
    """The agent asked for text."""
    (request,) = world.tells(world.agent.asks([user("q")], [CALC], tool_choice="none"))
    assert isinstance(request, GenerationRequested)
    answer = world.answers(request, TOOL_CALL)
    assert (answer.message["content"], answer.finish_reason) == (TOOL_CALL, "stop")


def test_the_budget_is_capped_by_the_context():
    """Prompt and answer together never exceed the model's context."""
    prompt = len(renderer().render([user("q")], None))
    (request,) = World(manager(max_context_tokens=prompt + 5)).tells(World().agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested) and request.sampling.max_tokens == 5


def test_a_prompt_without_room_is_the_error_that_makes_agents_compact():
    """The words and the code of the OpenAI API."""
    prompt = len(renderer().render([user("q")], None))
    (answer,) = World(manager(max_context_tokens=prompt)).tells(World().agent.asks([user("q")]))
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert (answer.error.status, answer.error.code) == (400, "context_length_exceeded")
    assert f"maximum context length is {prompt} tokens" in answer.error.message


def test_an_engine_that_finds_no_room_gives_the_same_error(world: World):
    """Its context may be smaller than the run says."""
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    *_, ended = world.engine.generates(request, [])
    assert isinstance(ended, GenerationEnded)
    (answer,) = world.tells(ended.model_copy(update={"finish": GenerationFinish.CONTEXT}))
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert answer.error.code == "context_length_exceeded"
    assert world.ends(undelivered=()).num_roots == 0


def test_a_generation_that_no_engine_can_do_is_an_error(world: World):
    """What was sampled before counts as sampled and is never trained; the episode goes on."""
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    claim, segment, ended = world.engine.generates(request, "seven")
    assert isinstance(ended, GenerationEnded)
    refused = ended.model_copy(update={"finish": GenerationFinish.REFUSED, "nonce": "refused"})
    world.tells(claim)
    with pytest.raises(NotYet):
        world.manager.apply(refused)
    (answer,) = world.tells(segment)
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert (answer.error.status, answer.error.code) == (500, "engine_refused")
    assert world.tells(refused) == [answer]
    world.turn([user("q")], "eight")
    ready = world.ends(num_calls=2)
    assert [sample.num_sampled for sample in ready.samples] == [6]
    assert (ready.num_sampled, ready.num_undelivered) == (11, 5)


def test_messages_the_template_refuses_are_a_bad_request():
    """In the template's own words."""
    words = tokenizer()
    strict = TemplateRenderer(words, ChatTemplate("{{ raise_exception('no system role') }}", {}), [0])
    (answer,) = Manager(strict, 100).apply(World().agent.asks([user("q")]))
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert answer.error.status == 400 and "no system role" in answer.error.message


def test_a_call_after_the_end_is_refused(world: World):
    """Also one of an episode that never asked before."""
    world.ends()
    (answer,) = world.tells(world.agent.asks([user("late")]))
    assert isinstance(answer, CallAnswered) and answer.error is not None and answer.error.status == 409


def test_an_end_refuses_open_calls_and_counts_their_tokens(world: World):
    """They reached nobody: sampled, not trained."""
    world.turn([user("q")], "seven")
    (request,) = world.tells(world.agent.asks([user("r")]))
    assert isinstance(request, GenerationRequested)
    for event in world.engine.generates(request, "abc")[:-1]:
        world.tells(event)
    refused, ready = world.tells(world.agent.ends(), settled=True)
    assert isinstance(refused, CallAnswered) and refused.error is not None and refused.call == request.generation
    assert isinstance(ready, SamplesReady)
    assert (ready.num_sampled, ready.num_undelivered, len(ready.samples)) == (9, 3, 1)


def test_an_end_with_open_calls_waits_for_its_journal(world: World):
    """What they had sampled by then is a question of journal order, not of delivery."""
    world.tells(world.agent.asks([user("q")]))
    with pytest.raises(NotYet):
        world.tells(world.agent.ends())


def test_an_evaluation_episode_gives_no_samples():
    """Its tokens are evaluated, never trained."""
    world = World()
    world.turn([user("q")], "seven", cuts=[2], version=4)
    (said,) = world.tells(world.agent.ends(origin=ORIGIN.model_copy(update={"evaluation": "before"})))
    assert isinstance(said, EpisodeEvaluated)
    assert (said.num_sampled, said.weights_versions, said.reward) == (6, (4, 5), 1.0)


def test_a_contradicting_segment_is_refused(world: World):
    """The fence makes it impossible; if it comes, nothing is guessed."""
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    _, segment, _ = world.engine.generates(request, "ab")
    assert isinstance(segment, SegmentSampled)
    world.tells(segment)
    with pytest.raises(MalformedMessage):
        world.tells(segment.model_copy(update={"token_ids": Int32s([1, 2]), "logprobs": Float32s([0, 0])}))


@settings(deadline=None)
@given(order=st.permutations(range(4)), again=st.lists(st.integers(min_value=0, max_value=3), max_size=3))
def test_tokens_may_come_in_any_order_and_more_than_once(order: list[int], again: list[int]):
    """The answer is the same, and is given when the last one missing has come."""
    world = World()
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    _, *events = world.engine.generates(request, "seven<|im_end|>", cuts=[2, 4])
    said: list[Event] = []
    for index in [*order, *again]:
        said += consequences_of(world.manager, events[index])
    answers = {answer.message["content"] for answer in said if isinstance(answer, CallAnswered)}
    assert answers == {"seven"}
    ready = world.ends()
    assert list(ready.samples[0].token_ids) == world.engine.fed[request.generation] + world.engine.sampled[request.generation]
    assert list(ready.samples[0].versions) == [(0, 2), (1, 2), (2, 2)]


@settings(deadline=None)
@given(order=st.permutations(range(3)), again=st.lists(st.integers(min_value=0, max_value=2), max_size=3))
def test_an_end_may_come_with_the_last_tokens_before_the_others(order: list[int], again: list[int]):
    """It is what the same generation comes to whose end was a message of its own."""
    world, apart = World(), World()
    expected = apart.turn([user("q")], "seven", cuts=[2, 4])
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    _, *events = joined(world.engine.generates(request, "seven<|im_end|>", cuts=[2, 4]))
    said: list[Event] = []
    for index in [*order, *again]:
        said += consequences_of(world.manager, events[index])
    assert said and all(answer == expected for answer in said)
    assert world.ends() == apart.ends()


def test_a_last_segment_waits_for_tokens_before_it(world: World):
    """As an end does; when it comes again after the answer it gives the answer again."""
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    _, first, last = joined(world.engine.generates(request, "seven<|im_end|>", cuts=[2]))
    with pytest.raises(NotYet):
        world.manager.apply(last)
    (answer,) = world.manager.apply(first)
    assert world.manager.apply(last) == [answer] and world.manager.apply(first) == []
    world.ends()
    assert world.manager.apply(last) == [answer]


def test_a_call_whose_last_segment_cannot_be_used_is_answered_with_an_error(world: World):
    """Nobody waits for what will not come; a segment that is not the last owes nothing."""
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    _, first, last = joined(world.engine.generates(request, "seven<|im_end|>", cuts=[2]))
    assert world.manager.give_up(first) == []
    (answer,) = world.manager.give_up(last)
    assert isinstance(answer, CallAnswered) and answer.error is not None and answer.call == request.generation


def test_a_last_segment_of_an_episode_that_is_only_a_name_is_read_again(world: World):
    """Whether its call was answered before the end is in the journal."""
    (request,) = world.tells(world.agent.asks([user("q")]))
    assert isinstance(request, GenerationRequested)
    _, first, last = joined(world.engine.generates(request, "seven<|im_end|>", cuts=[2]))
    forgetful = manager()
    forgetful.mark_ended([EPISODE])
    assert forgetful.apply(first) == []
    with pytest.raises(NotYet):
        forgetful.apply(last)


def test_a_call_that_overtakes_the_messages_it_refers_to_waits(world: World):
    """Two calls at once share messages; the one that carries them may come second."""
    first, second = world.agent.asks([user("q")]), world.agent.asks([user("q")])
    with pytest.raises(NotYet):
        world.manager.apply(second)
    said = world.manager.apply(first)
    assert [event.generation for event in said if isinstance(event, GenerationRequested)] == ["c0", "c1"]
    assert len(world.manager.apply(second)) == 1


def test_a_call_that_overtakes_the_turn_it_points_at_waits(world: World):
    """It is not taken for a rewritten history."""
    (request,) = world.tells(world.agent.asks([user("q")], [CALC]))
    assert isinstance(request, GenerationRequested)
    *rest, ended = world.engine.generates(request, TOOL_CALL + "<|im_end|>")
    call = {"id": "call_c0_0", "type": "function", "function": {"name": "calc", "arguments": "{}"}}
    following = world.agent.asks([user("q"), {"role": "assistant", "tool_calls": [call]}, user("r")], [CALC])
    for event in rest:
        world.manager.apply(event)
    with pytest.raises(NotYet):
        world.manager.apply(following)
    answer, released = world.manager.apply(ended)
    assert isinstance(answer, CallAnswered)
    assert isinstance(released, GenerationRequested) and released.parent == "c0"


def test_a_call_that_cannot_be_planned_breaks_no_other(world: World):
    """Whatever fails on it: by its own event it fails itself, and one that comes after it gives it up and goes on."""
    broken = {"role": "assistant", "content": "", "tool_calls": ["no map"]}
    first = world.agent.asks([broken, user("q")], call="bad")
    with pytest.raises(AttributeError):
        world.manager.apply(first)
    good = world.agent.asks([user("r")], call="good")
    request, given_up = world.manager.apply(good)
    assert isinstance(request, GenerationRequested) and request.generation == "good"
    assert isinstance(given_up, CallAnswered) and given_up.call == "bad" and given_up.error is not None
    assert world.manager.apply(first) == [given_up] and world.manager.apply(good) == [request]


def test_a_call_that_fails_does_not_keep_others_from_being_planned(world: World):
    """What it lets go on is planned all the same, and said by its own event."""
    waiting = world.agent.asks([user("a"), user("b")], call="waits")
    later = waiting.model_copy(update={"unseen": {}})
    with pytest.raises(NotYet):
        world.manager.apply(later)
    broken = {"role": "assistant", "content": "", "tool_calls": ["no map"]}
    bad = world.agent.asks([broken], call="bad")
    carries = {digest_of(user(text)): user(text) for text in "ab"}
    with pytest.raises(AttributeError):
        world.manager.apply(bad.model_copy(update={"unseen": {**bad.unseen, **carries}}))
    request, given_up = world.manager.apply(later)
    assert isinstance(request, GenerationRequested) and request.generation == "waits"
    assert isinstance(given_up, CallAnswered) and given_up.call == "bad"


def test_a_manager_of_a_shard_that_is_left_drops_its_trees_at_once():
    """Without the collector, which does not look at what has been there for long."""
    under_test = manager()
    world = World(under_test)
    world.turn([user("q")], "seven")
    World(under_test, episode="g1-0-0").turn([user("q")], "seven")
    episode = under_test.episode(EPISODE)
    assert episode is not None
    tree = weakref.ref(episode.tree)
    del episode
    gc.disable()
    try:
        under_test.drop()
        assert tree() is None and under_test.episode("g1-0-0") is None
    finally:
        gc.enable()


def long_episode() -> World:
    """Chat, a tool call, two answers to one prompt, an answer nobody read, an end with an open call."""
    world = World()
    first = world.turn([user("3+4?")], TOOL_CALL, tools=[CALC], cuts=[3])
    history = [user("3+4?"), first.message, {"role": "tool", "tool_call_id": "call_c0_0", "content": "7"}]
    second = world.turn(history, "seven", tools=[CALC], cuts=[2], is_joined=True)
    world.turn(history, "7", tools=[CALC], version=1, is_joined=True)
    world.turn([*history, second.message, user("sure?")], tokenizer().encode("ye"), tools=[CALC])
    world.tells(world.agent.asks([user("open")]))
    world.ends(undelivered=("c3",))
    world.tells(world.agent.asks([user("late")]))
    return world


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_applying_an_event_again_gives_its_consequence_again(data: st.DataObject):
    """From any state of a manager that has read some of the journal, each event says what it said the first time."""
    world = long_episode()
    heard = [event for event in world.journal if isinstance(event, HEARD)]
    read = data.draw(st.integers(min_value=1, max_value=len(heard)))
    restored = manager()
    first = [consequences_of(restored, event) for event in heard[:read]]
    said_before = [event for consequences in first for event in consequences]
    for position in data.draw(st.lists(st.integers(min_value=0, max_value=read - 1), max_size=6)):
        event = heard[position]
        again = consequences_of(restored, event)
        if (isinstance(event, SegmentSampled) and event.finish is None) or restored.has_ended(EPISODE):
            # What an episode's end made pointless is not asked for again; what it says is what it said.
            assert all(each in said_before for each in again)
        else:
            assert again == first[position]


@settings(deadline=None, max_examples=40)
@given(cut=st.integers(min_value=0, max_value=40))
def test_reading_the_journal_restores_everything(cut: int):
    """A manager that starts anywhere in the middle goes on as if it had always been there."""
    world = long_episode()
    heard = [event for event in world.journal if isinstance(event, HEARD)]
    old, new = manager(), manager()
    expected = [consequences_of(old, event) for event in heard]
    for event in heard[:cut]:
        consequences_of(new, event)
    assert [consequences_of(new, event) for event in heard[cut:]] == expected[cut:]


def test_a_replay_of_what_was_said_finds_no_difference():
    """And finds the one that was made."""
    world = long_episode()
    whole = replay((("", event) for event in world.journal), manager())
    assert whole.differences == [] and whole.num_pending == 0
    assert whole.num_equal == whole.num_compared == sum(isinstance(event, SAID) for event in world.journal)
    changed = list(world.journal)
    position = next(i for i, event in enumerate(changed) if isinstance(event, CallAnswered) and event.call == "c1")
    changed[position] = changed[position].model_copy(update={"finish_reason": "length"})
    (difference,) = replay((("", event) for event in changed), manager()).differences
    assert difference.fields == ("finish_reason",) and "c1" in str(difference)


def test_a_replay_reports_what_only_one_side_says():
    """An answer nobody had reason for, and one that is still due."""
    world = World()
    answer = world.turn([user("q")], "seven")
    orphan = answer.model_copy(update={"call": "nobody"})
    compared = replay((("", event) for event in [*world.journal[:-1], orphan]), manager())
    assert compared.num_pending == 1
    assert [str(each) for each in compared.differences] == [f"run-1.answer.{EPISODE}.nobody: was said, would not be"]


def test_finished_episodes_are_released():
    """Their trees go; the last ones still repeat what they said, older ones ask for their journal."""
    under_test = manager(num_remembered=2)
    worlds = [World(under_test, episode=f"g0-{number}-0") for number in range(4)]
    ends: list[Any] = []
    for world in worlds:
        world.turn([user("q")], "seven")
        world.ends()
        ends.append(next(event for event in world.journal if type(event).__name__ == "EpisodeEnded"))
    assert all(under_test.episode(end.episode) is None for end in ends)
    assert under_test.apply(ends[3]) == worlds[3].journal[-1:]
    with pytest.raises(NotYet):
        under_test.apply(ends[0])
    folded = under_test.empty()
    for event in worlds[0].journal:
        folded.apply(event, settled=True)
    under_test.adopt("g0-0-0", folded)
    assert under_test.apply(ends[0]) == worlds[0].journal[-1:]


def test_ended_trees_are_remembered_by_their_tokens_too():
    """A few very long ones would fill the memory; the last one stays whatever its size."""
    under_test = manager(remembered_tokens=10)
    worlds = [World(under_test, episode=f"g0-{number}-0") for number in range(3)]
    for world in worlds:
        world.turn([user("q")], "seven")
        world.ends()
    remembered = [under_test.finished_tree(world.agent.episode) is not None for world in worlds]
    assert remembered == [False, False, True]


def test_an_answered_call_keeps_no_events(world: World):
    """What was asked and sampled is in the tree; what was answered is made from it again."""
    answer = world.turn([user("3+4?")], TOOL_CALL, tools=[CALC], cuts=[3])
    call = world.manager.call(EPISODE, answer.call)
    assert call is not None and call.is_answered
    assert not isinstance(call.request, Event)
    assert (call.requested, call.segments, call.end, call.refusal) == (None, {}, None, None)
    heard = [event for event in world.journal if isinstance(event, HEARD)]
    assert world.manager.apply(heard[0]) == [world.journal[1]] and world.manager.apply(heard[-1]) == [answer]


def test_an_attempt_that_failed_says_so():
    """One SamplesReady for every attempt, empty on failure."""
    ready = World().ends(status=EpisodeStatus.NOT_STARTED)
    assert (ready.status, ready.samples, ready.num_sampled, ready.num_roots) == (EpisodeStatus.NOT_STARTED, (), 0, 0)


@pytest.mark.parametrize("is_joined", [False, True])
def test_what_continues_a_turn_is_asked_where_its_context_is(world: World, is_joined: bool):
    """Who sampled it says in which bucket; as long as nobody says another it is that one, and of each branch its own."""

    def sampled(request: Event, text: str, bucket: int | None) -> dict[str, Any]:
        assert isinstance(request, GenerationRequested)
        events = world.engine.generates(request, text + "<|im_end|>")
        *before, last = joined(events) if is_joined else events
        said = [each for event in (*before, last.model_copy(update={"bucket": bucket})) for each in world.tells(event)]
        assert isinstance(said[0], CallAnswered)
        return said[0].message

    def asks(*messages: dict[str, Any]) -> GenerationRequested:
        (request,) = world.tells(world.agent.asks(messages, bucket=8))
        assert isinstance(request, GenerationRequested)
        return request

    first = asks(user("q"))
    history = [user("q"), sampled(first, "one", 3), user("and?")]
    second = asks(*history)
    history += [sampled(second, "two", None), user("then?")]
    third = asks(*history)
    other = asks(user("another conversation"))
    history += [sampled(third, "three", 5), user("so?")]
    fourth = asks(*history)
    beside = asks(user("another conversation"), sampled(other, "four", 6), user("and?"))

    assert [each.bucket for each in (first, second, third, other, fourth, beside)] == [8, 3, 3, 8, 5, 6]
    assert replay(((str(number), event) for number, event in enumerate(world.journal)), manager()).differences == []
