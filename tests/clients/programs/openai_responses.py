"""The official openai client in a loop of its own over responses, without stored state: prints the final answer."""

import json
import sys

from openai import OpenAI

CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
}
client = OpenAI(timeout=4)  # seconds of silence: less than a pause
streams = sys.argv[2:] == ["stream"]


def ask(items):
    options = {"model": "any-model", "input": items, "tools": [CALCULATOR], "store": False}
    options["include"] = ["reasoning.encrypted_content"]
    if not streams:
        return client.responses.create(**options)
    with client.responses.stream(**options) as events:
        for _ in events:
            pass
        return events.get_final_response()


items = [{"role": "user", "content": sys.argv[1]}]
while True:
    response = ask(items)
    items += response.output
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    for call in calls:
        numbers = json.loads(call.arguments)
        result = str(numbers["a"] + numbers["b"])
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
print(response.output_text)
