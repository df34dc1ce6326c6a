"""How many roots, forks and branches the habits of real agents give, and what forks are called and cost.

as_sampled    re-serialised arguments, dropped reasoning, billing headers          one chain
              sub-agents, title requests, a compaction to a summary                a root each
              parallel calls                                                        a branch each
              tools removed, turns rewritten, messages removed or changed          a fork, with its cause
as_template   the same, and a fork wherever the template shows other ids than were sampled
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import GenerationRequested, SamplesReady
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from seamlessflow_trajectory_manager.trajectory.message_identity import without_noise
from seamlessflow_trajectory_manager.trajectory.messages import Messages
from seamlessflow_trajectory_manager.trajectory.tree import reprefilled_tokens
from tests.domain.trajectory_builders import CALC, CHATML, World, manager, renderer, tokenizer, user

CALL = '<tool_call>{"name": "calc", "arguments": {"b": 2, "a":  1}}</tool_call>'
SYSTEM = {"role": "system", "content": "be brief"}
THOUGHT = "<think>hm</think>"
THINKING = CHATML.replace(
    "message['content'] }}",
    "('<think>' + message.reasoning_content + '</think>' if message.reasoning_content and loop.last else '') "
    "+ message['content'] }}",
)
"""Shows the thoughts of the last message only, as many models' templates do."""


def as_template(template: str = CHATML) -> World:
    return World(Manager(renderer(template), 2000, "as_template"))


def echoed(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An answer as an agent brings it back; arguments re-serialised, reasoning dropped."""
    kept = {key: value for key, value in message.items() if key != "reasoning_content"}
    if "tool_calls" in kept:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(json.loads(call["function"]["arguments"]))}}
            for call in kept["tool_calls"]
        ]
        kept["tool_calls"] = calls
    return {**kept, **changes}


def result(message: dict[str, Any], text: str = "3") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


def tool_episode(world: World) -> None:
    """langchain, pydantic-ai, opencode: arguments re-serialised, reasoning dropped."""
    history = [SYSTEM, user("1+2?")]
    for _ in range(3):
        answer = world.turn(history, THOUGHT + CALL, tools=[CALC])
        history = [*history, echoed(answer.message), result(answer.message)]
    world.turn(history, "three", tools=[CALC])


def billed(world: World) -> None:
    """Claude Code: the first system block differs with each request."""
    history = [user("q")]
    for number in range(3):
        noisy = {"role": "system", "content": f"x-anthropic-billing-header: cch={number};\n\nbe brief"}
        answer = world.turn([noisy, *history], "seven")
        history = [*history, answer.message, user("again")]


def sub_agent(world: World) -> None:
    """Between two turns, another agent with instructions of its own, under the same endpoint."""
    first = world.turn([SYSTEM, user("q")], CALL, tools=[CALC])
    prompt = [{"role": "system", "content": "you calculate"}, user("1+2")]
    found = world.turn(prompt, "thr")
    world.turn([*prompt, found.message, user("sure?")], "three")
    world.turn([SYSTEM, user("q"), first.message, result(first.message)], "three", tools=[CALC])


def title(world: World) -> None:
    """opencode: its first call asks for a title, without tools."""
    world.turn([{"role": "system", "content": "make a title"}, user("q")], "A title")
    answer = world.turn([SYSTEM, user("q")], CALL, tools=[CALC])
    world.turn([SYSTEM, user("q"), answer.message, result(answer.message)], "three", tools=[CALC])


def parallel(world: World) -> None:
    """Three calls go on from one turn at the same time."""
    first = world.turn([user("q")], "seven")
    asked = [world.tells(world.agent.asks([user("q"), first.message, user(text)]))[0] for text in "aab"]
    for request in reversed(asked):
        assert isinstance(request, GenerationRequested) and request.parent == first.call
        world.answers(request, "yes")


def summary(world: World) -> None:
    """A compaction: the history is replaced by a summary that the model itself wrote."""
    history = [SYSTEM, user("q")]
    answer = world.turn(history, "seven")
    made = world.turn([*history, answer.message, user("summarise")], "it was seven")
    world.turn([SYSTEM, user(f"So far: {made.message['content']}. Go on")], "on")


def trimmed(world: World) -> None:
    """The oldest turn is dropped, the others stay."""
    first = world.turn([SYSTEM, user("q")], "seven")
    history = [SYSTEM, user("q"), first.message, user("r")]
    second = world.turn(history, "eight")
    world.turn([SYSTEM, user("r"), second.message, user("s")], "nine")


def tools_removed(world: World) -> None:
    """autogen: its last call offers no tools."""
    answer = world.turn([SYSTEM, user("q")], CALL, tools=[CALC])
    history = [SYSTEM, user("q"), answer.message, result(answer.message)]
    world.turn(history, "three")


def rewritten(world: World) -> None:
    """smolagents: each turn comes back as a text of its own."""
    history = [SYSTEM, user("q")]
    for number in range(3):
        world.turn(history, CALL, tools=[CALC])
        rewrite = {"role": "assistant", "content": f"Calling tools: calc {number}"}
        history = [*history, rewrite, user(f"Observation: {number}")]


def instructed_anew(world: World) -> None:
    """Other instructions before the same turns."""
    answer = world.turn([SYSTEM, user("q")], "seven")
    world.turn([{"role": "system", "content": "be long"}, user("q"), answer.message, user("r")], "eight")


def examples(world: World) -> None:
    """Prompts with turns that nobody sampled, in the first conversation and in another one."""
    for topic in ("sums", "products"):
        prompt = [user(topic), {"role": "assistant", "content": f"I like {topic}"}, user("1 2")]
        answer = world.turn(prompt, "3")
        world.turn([*prompt, answer.message, user("2 3")], "5")


SHAPES: list[tuple[Callable[[World], None], int, int, dict[str, int]]] = [
    # what the agent does, roots, samples, causes of forks
    (tool_episode, 1, 1, {}),
    (billed, 1, 1, {}),
    (sub_agent, 2, 2, {}),
    (title, 2, 2, {}),
    (parallel, 1, 3, {}),
    (summary, 2, 2, {}),
    (examples, 2, 2, {}),
    (trimmed, 2, 2, {"messages_removed": 1}),
    (tools_removed, 2, 2, {"tools_changed": 1}),
    (rewritten, 3, 3, {"rewritten_turn": 2}),
    (instructed_anew, 2, 2, {"messages_changed": 1}),
]


def judged(world: World, does: Callable[[World], None]) -> SamplesReady:
    does(world)
    return world.ends()


@pytest.mark.parametrize(("does", "roots", "samples", "causes"), SHAPES, ids=[shape[0].__name__ for shape in SHAPES])
def test_what_an_agent_does_gives_the_right_tree(
    does: Callable[[World], None], roots: int, samples: int, causes: dict[str, int]
):
    """None of it is an error, and every sampled token is trained once."""
    world = World()
    ready = judged(world, does)
    assert (ready.num_roots, len(ready.samples), ready.fork_causes) == (roots, samples, causes)
    assert ready.num_forks == sum(causes.values()) and (ready.reprefilled_tokens > 0) == bool(causes)
    assert sorted(lp for sample in ready.samples for lp in sample.logprobs) == sorted(world.engine.token_of)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape[0].__name__ for shape in SHAPES])
def test_as_the_template_shows_it_nothing_is_lost_either(shape: Any):
    """There are at least as many forks; what is fed is what the template shows, to the letter and to the id."""
    world = as_template()
    asked: dict[str, tuple[list[Any], Any]] = {}
    original = world.agent.asks

    def remember(messages: Any, tools: Any = None, **fields: Any) -> Any:
        event = original(messages, tools, **fields)
        asked[event.call] = ([each for message in messages if (each := without_noise(message))], tools)
        return event

    world.agent.asks = remember  # type: ignore[method-assign]
    ready = judged(world, shape[0])
    assert ready.num_forks >= sum(shape[3].values())
    assert sorted(lp for sample in ready.samples for lp in sample.logprobs) == sorted(world.engine.token_of)
    for call, (messages, tools) in asked.items():
        assert world.engine.fed[call] == renderer().render(messages, tools)


def test_dropped_reasoning_forks_only_as_the_template_shows_it():
    """The ids of the thoughts are not in the rendered history; the turn before them is shared all the same."""

    def thinks(world: World) -> None:
        first = world.turn([user("q")], "seven")
        history = [user("q"), first.message, user("r")]
        second = world.turn(history, THOUGHT + "eight")
        world.turn([*history, echoed(second.message), user("s")], "nine")

    assert (judged(World(), thinks).num_forks, judged(World(), thinks).num_roots) == (0, 1)
    world = as_template()
    ready = judged(world, thinks)
    assert (ready.num_roots, ready.fork_causes, len(ready.samples)) == (1, {"template_changed": 1}, 2)
    # Fed again: the question, and what of the thoughtful turn's place is now new.
    shared = len(world.engine.fed["c0"] + world.engine.sampled["c0"])
    before = len(world.engine.fed["c1"] + world.engine.sampled["c1"])
    assert ready.reprefilled_tokens == min(len(world.engine.fed["c2"]), before) - shared


def test_reserialised_arguments_fork_only_as_the_template_shows_them():
    """The spaces of the model's own JSON are not the template's."""
    world = as_template()
    ready = judged(world, tool_episode)
    assert ready.fork_causes == {"template_changed": 3}
    linear = as_template()
    first = linear.turn([user("q")], "seven")
    second = linear.turn([user("q"), first.message, user("r")], "eight")
    linear.turn([user("q"), first.message, user("r"), second.message, user("s")], "nine")
    assert (linear.ends().num_forks, linear.manager.episode(linear.agent.episode)) == (0, None)


@pytest.mark.parametrize("history", ["as_sampled", "as_template"])
def test_a_template_that_forgets_thoughts_forks_only_as_it_shows_them(history: Any):
    """As sampled, the thoughts stay where they were, though the template would show them no more."""
    world = World(Manager(renderer(THINKING), 2000, history))
    first = world.turn([user("q")], THOUGHT + "seven")
    (request,) = world.tells(world.agent.asks([user("q"), first.message, user("r")]))
    assert isinstance(request, GenerationRequested)
    assert (request.parent == first.call) == (history == "as_sampled")
    if history == "as_sampled":
        text = tokenizer().decode(list(request.suffix))
        assert text == "\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
    world.answers(request, "eight")
    assert world.ends().fork_causes == ({} if history == "as_sampled" else {"template_changed": 1})


NOISE = "x-anthropic-billing-header: cc_version=2.1; cch={};"


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (NOISE, None),
        (NOISE + "\nbe brief", "be brief"),
        ("\n " + NOISE + "\n\n" + NOISE + "\n\nbe brief", "be brief"),
        ([{"type": "text", "text": NOISE}, {"type": "text", "text": "be brief"}], [{"type": "text", "text": "be brief"}]),
        ([{"type": "text", "text": NOISE}], None),
        ([{"type": "text", "text": NOISE + "\nbe brief"}], [{"type": "text", "text": "be brief"}]),
        ([NOISE + "\nbe brief", NOISE, "be kind", "", None], ["be brief", "be kind", "", None]),
        ("be brief\n" + NOISE, "be brief\n" + NOISE),
        ("", ""),
        (None, None),
        ([], []),
    ],
)
def test_noise_in_front_of_instructions_is_taken_out(content: Any, left: Any):
    """Of instructions only: what a user says is the user's."""
    message = {"role": "system", "content": content}
    kept = without_noise(message)
    if content is None or content == left:
        assert kept is message
    else:
        assert kept == (None if left is None else {"role": "system", "content": left})
    assert without_noise({"role": "user", "content": content}) == {"role": "user", "content": content}


@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.text(alphabet="0123abc=;", max_size=6), min_size=4, max_size=4), alone=st.booleans())
def test_noise_changes_no_id(values: list[str], alone: bool):
    """A conversation with a header of its own in each request is fed as one without."""

    def play(headers: list[str | None]) -> World:
        world, history = World(), [user("q")]
        for header in headers:
            text = "" if alone else "be brief"
            shown = text if header is None else NOISE.format(header) + "\n\n" + text
            system = [{"role": "system", "content": shown}] if shown else []
            answer = world.turn([*system, *history], "seven")
            history = [*history, answer.message, user("again")]
        return world

    noisy, clean = play(list(values)), play([None] * 4)
    assert list(noisy.engine.fed.values()) == list(clean.engine.fed.values())
    assert noisy.ends().num_roots == 1


def test_reprefilled_tokens_are_those_the_engine_had():
    """Never more than are fed again, nor than were there; shared ones do not count."""
    assert reprefilled_tokens(num_suffix=100, num_parent=0, num_near=80) == 80
    assert reprefilled_tokens(num_suffix=30, num_parent=10, num_near=80) == 30
    assert reprefilled_tokens(num_suffix=30, num_parent=60, num_near=40) == 0
    assert reprefilled_tokens(num_suffix=30, num_parent=0, num_near=0) == 0


def test_what_episodes_have_in_common_rests_once():
    """Instructions and tools of an agent are the same in all its episodes."""
    first, second = Messages(), Messages()
    long = {"role": "system", "content": "be brief. " * 100}
    for messages in (first, second):
        messages.learn({"s": dict(long), "t": {"tools": [CALC] * 9}}, "t")
    assert first._messages["s"] is second._messages["s"] and first._tools["t"] is second._tools["t"]
    history = first.history(("s", "s"))
    assert history is not None and list(history) == [long, long] and history[1:][0] == long
    assert first.history(("s", "unknown")) is None and first.tools("t") == [CALC] * 9


def test_a_manager_can_be_told_how_history_stands():
    """As sampled is the default."""
    assert manager()._history == "as_sampled"
