"""A smolagents agent that calls tools, one of them ours: prints the final answer."""

import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def calculator(a: float, b: float) -> str:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return f"{a + b:g}"


model = OpenAIServerModel("any-model", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[calculator], model=model, max_steps=4, verbosity_level=0)
print(agent.run(sys.argv[1]))
