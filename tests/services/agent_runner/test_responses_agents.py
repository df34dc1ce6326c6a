"""openai-agents, unmodified: an agent framework whose Runner speaks the responses API unless told otherwise."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool

from tests.services.agent_runner.spoken_turns import Script, parents_of, turn

TURNS = [
    turn("I add them up.", '{"expression":\n "3+4"}', '{"expression": "5+6"}', reasoning="two sums"),
    turn("", '{"expression": "7+11"}'),
    turn("It is 18."),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "way",
    [
        {},
        {"settings": ModelSettings(store=False, response_include=["reasoning.encrypted_content"])},
        {"auto_previous_response_id": True},
    ],
    ids=["whole input", "encrypted reasoning", "previous response"],
)
async def test_a_task_with_tools_is_finished_and_is_one_chain(gateway: Any, way: dict[str, Any], streamed: bool) -> None:
    """Each request goes on from the turn before it, whatever the framework sends back of it."""
    script = gateway.manager.reply = Script(TURNS)
    asked: list[str] = []

    @function_tool
    def calc(expression: str) -> str:
        """Adds two numbers."""
        asked.append(expression)
        return str(sum(map(int, expression.split("+"))))

    more = dict(way)
    agent = Agent(
        name="adder",
        instructions="Use the tool.",
        tools=[calc],
        model="m",
        model_settings=more.pop("settings", ModelSettings()),
    )
    async with gateway.openai(openai.AsyncOpenAI) as client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
        if streamed:
            result = Runner.run_streamed(agent, "3 + 4 + 5 + 6?", run_config=config, **more)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, "3 + 4 + 5 + 6?", run_config=config, **more)

    assert result.final_output == "It is 18."
    assert sorted(asked) == ["3+4", "5+6", "7+11"]
    assert parents_of(gateway.manager, script.said) == [None, 0, 1]
    first = gateway.manager.contents[gateway.manager.calls[-1].messages[2]]
    assert first["tool_calls"] == next(iter(script.said.values()))["tool_calls"]
    assert gateway.session.close() == ()
