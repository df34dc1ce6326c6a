"""A Pydantic AI agent with one tool, over chat completions: prints the final answer."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("any-model"), instructions="Use the calculator.")


@agent.tool_plain
def calculator(a: float, b: float) -> str:
    """Adds two numbers."""
    return f"{a + b:g}"


print(agent.run_sync(sys.argv[1]).output)
