"""vllm-project/vllm#9019 (and ml-explore/mlx-lm#1375): templates of Mistral 7B v0.3, Nemo, Ministral, Mixtral refuse tool-call ids
that are not nine characters long; a server that hands out longer ids makes every second turn of a tool loop fail.

Input: one tool call of ours (id as the product gives it) and its result come back, as every agent sends them.
Expected: the prompt is rendered (an id of the server's own making must suit the server's own template).
"""

from sf_unit import CALC, folder, prompt, verdict

from seamlessflow_trajectory_manager.trajectory.message_identity import tool_call_id

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS] {% for c in m.tool_calls %}"
    "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids of tool calls must have nine characters') }}{% endif %}"
    "{{ c.function | tojson }} id {{ c.id }}{% endfor %}</s>"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>"
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{ raise_exception('ids of tool calls must have nine characters') }}{% endif %}"
    "[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
)


def body(identity):
    call = {"id": identity, "type": "function", "function": {"name": "calc", "arguments": '{"e": "1+1"}'}}
    return {
        "model": "m",
        "tools": [CALC],
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identity, "content": "2"},
        ],
    }


where = folder(MISTRAL, eos="</s>")
print("nine characters:", repr(prompt(where, body("abcDEF123")))[:120])
ours = tool_call_id("c0193a1b2c3d4aabbccddeeff0011", 0)
try:
    print("ours:", prompt(where, body(ours))[:120])
    verdict(True, "an id of our own is accepted by a template that wants nine characters")
except Exception as wrong:
    print("ours:", ours, "->", type(wrong).__name__, wrong)
    verdict(False, "our own tool-call ids are refused by the model's template: every second turn of a tool loop is a 400")
