"""A langchain agent, which is a langgraph graph, with one tool: prints the final answer."""

import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def calculator(a: float, b: float) -> str:
    """Adds two numbers."""
    return f"{a + b:g}"


agent = create_agent(ChatOpenAI(model="any-model"), tools=[calculator], system_prompt="Use the calculator.")
state = agent.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]})
print(state["messages"][-1].text)
