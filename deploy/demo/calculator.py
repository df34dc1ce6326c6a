"""An agent whose model may call a calculator until it answers. An ordinary program that knows nothing of training."""

import ast
import json
import operator
import sys

from openai import DefaultHttpxClient, OpenAI

HTTP = DefaultHttpxClient()  # made once: making it reads every root certificate
MAX_TURNS = 4
MAX_CHARACTERS = 200
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
CALC = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Work out an expression of whole numbers with + - * and brackets.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "for example 3 + 4 * 2"}},
            "required": ["expression"],
        },
    },
}


def run(task: dict) -> str:
    client = OpenAI(http_client=HTTP)
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(MAX_TURNS):
        message = client.chat.completions.create(model="policy", messages=messages, tools=[CALC]).choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = calc(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def calc(name: str, arguments: str) -> str:
    """The value as text, or what is wrong with the call: the model is to see its mistakes."""
    if name != "calc":
        return f"error: there is no tool {name}"
    try:
        expression = json.loads(arguments)["expression"]
        return str(value_of(ast.parse(str(expression)[:MAX_CHARACTERS].strip(), mode="eval").body))
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError) as wrong:
        return f"error: {type(wrong).__name__}"


def value_of(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.operand))
    raise ValueError("only whole numbers with + - * and brackets")


if __name__ == "__main__":
    print(run({"prompt": sys.argv[1]}))
