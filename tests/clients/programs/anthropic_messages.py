"""The official anthropic client in a loop of its own over messages: prints the final answer. ``stream`` as second word."""

import sys

from anthropic import Anthropic

CALCULATOR = {
    "name": "calculator",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
}
client = Anthropic(timeout=4)  # seconds of silence: less than a pause
streams = sys.argv[2:] == ["stream"]


def ask(messages):
    options = {"model": "any-model", "max_tokens": 1000, "messages": messages, "tools": [CALCULATOR]}
    if not streams:
        return client.messages.create(**options)
    with client.messages.stream(**options) as events:
        for _ in events:
            pass
        return events.get_final_message()


messages = [{"role": "user", "content": sys.argv[1]}]
while (message := ask(messages)).stop_reason == "tool_use":
    messages.append({"role": "assistant", "content": message.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"] + block.input["b"])}
        for block in message.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in message.content if block.type == "text"))
