"""vllm-project/vllm#9019 (Mistral), vllm#13978 (Llama 3.1): models behind those templates write calls in their own grammar.

Which sampled texts come back as tool calls for a model that is rendered with its own template (a fine-tune, a folder, Qwen2.5, Llama,
Mistral, Gemma)? Expected by docs/endpoint.md ("with tools"): what the model's template shows as a call is a call when sampled;
where it cannot be parsed, the operator is told (requirement C8: tools offered and never called raise a warning).
"""

from sf_unit import verdict

from seamlessflow_trajectory_manager.rendering.tool_calls import parse_text

SAID = {
    "Hermes/Qwen2.5 JSON in <tool_call> (control)": '<tool_call>\n{"name": "calc", "arguments": {"e": "1+1"}}\n</tool_call>',
    "the same, parameters instead of arguments": '<tool_call>{"name": "calc", "parameters": {"e": "1+1"}}</tool_call>',
    "the same, no arguments at all": '<tool_call>{"name": "now"}</tool_call>',
    "the same, arguments null": '<tool_call>{"name": "now", "arguments": null}</tool_call>',
    "the same, one in a list": '<tool_call>[{"name": "calc", "arguments": {"e": "1+1"}}]</tool_call>',
    "two, not closed by budget": '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "b", "argu',
    "Llama 3.1 JSON": '{"name": "calc", "parameters": {"e": "1+1"}}',
    "Llama 3.1 python tag": '<|python_tag|>{"name": "calc", "parameters": {"e": "1+1"}}',
    "Mistral": '[TOOL_CALLS] [{"name": "calc", "arguments": {"e": "1+1"}}]',
    "Qwen3-Coder XML": "<tool_call>\n<function=calc>\n<parameter=e>\n1+1\n</parameter>\n</function>\n</tool_call>",
    "GLM": "<tool_call>calc\n<arg_key>e</arg_key>\n<arg_value>1+1</arg_value>\n</tool_call>",
    "call inside thoughts (must not be one)": '<think>\n<tool_call>{"name": "calc", "arguments": {}}</tool_call>\n</think>\n\nhi',
    "duplicate keys": '<tool_call>{"name": "a", "name": "calc", "arguments": {}}</tool_call>',
    "emoji and escapes in arguments": '<tool_call>{"name": "calc", "arguments": {"e": "\\ud83d\\ude00 \u6f22 \u2028"}}</tool_call>',
}
for name, text in SAID.items():
    parsed = parse_text(text, with_tools=True)
    print(
        f"{name:46} calls {[(c.name, c.arguments) for c in parsed.tool_calls]} malformed {parsed.num_malformed} content {parsed.content[:40]!r}"
    )
told = parse_text(SAID["Mistral"], with_tools=True).num_malformed
verdict(
    bool(told),
    "a call in another family's grammar is at least counted as malformed"
    if told
    else "calls in Mistral's and Llama's grammar are plain text, and nothing counts or tells it",
)
