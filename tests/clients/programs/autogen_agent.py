"""An AutoGen assistant with one tool, which reflects on its result: prints the final answer."""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def calculator(a: float, b: float) -> str:
    """Adds two numbers."""
    return f"{a + b:g}"


async def main() -> None:
    model = OpenAIChatCompletionClient(
        model="any-model",
        base_url=os.environ["OPENAI_BASE_URL"],
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    agent = AssistantAgent("adder", model_client=model, tools=[calculator], reflect_on_tool_use=True)
    result = await agent.run(task=sys.argv[1])
    print(result.messages[-1].content)
    await model.close()


asyncio.run(main())
