"""The official openai client in a loop of its own over chat completions: prints the final answer. ``stream`` as second word."""

import json
import sys

from openai import OpenAI

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
client = OpenAI(timeout=4)  # seconds of silence: less than a pause
streams = sys.argv[2:] == ["stream"]


def ask(messages):
    options = {"model": "any-model", "messages": messages, "tools": [CALCULATOR]}
    if not streams:
        return client.chat.completions.create(**options).choices[0].message
    with client.chat.completions.stream(**options) as events:
        for _ in events:
            pass
        return events.get_final_completion().choices[0].message


messages = [{"role": "user", "content": sys.argv[1]}]
while (message := ask(messages)).tool_calls:
    messages.append(message)
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])})
print(message.content)
