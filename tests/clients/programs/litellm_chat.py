"""litellm in a loop of its own over chat completions: prints the final answer."""

import json
import os
import sys

import litellm

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


def ask(messages):
    return (
        litellm.completion(
            model="openai/any-model", api_base=os.environ["OPENAI_BASE_URL"], messages=messages, tools=[CALCULATOR]
        )
        .choices[0]
        .message
    )


messages = [{"role": "user", "content": sys.argv[1]}]
while (message := ask(messages)).tool_calls:
    messages.append(message)
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])})
print(message.content)
