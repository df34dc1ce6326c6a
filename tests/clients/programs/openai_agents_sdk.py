"""An agent of the OpenAI Agents SDK with one tool: prints the final answer. Words: chat (else responses), stream."""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
if "chat" in sys.argv[2:]:
    set_default_openai_api("chat_completions")


@function_tool
def calculator(a: float, b: float) -> str:
    """Adds two numbers."""
    return f"{a + b:g}"


agent = Agent(name="Adder", instructions="Use the calculator.", tools=[calculator], model="any-model")


async def main() -> None:
    if "stream" not in sys.argv[2:]:
        result = await Runner.run(agent, sys.argv[1])
    else:
        result = Runner.run_streamed(agent, sys.argv[1])
        async for _ in result.stream_events():
            pass
    print(result.final_output)


asyncio.run(main())
