"""ggml-org/llama.cpp#6484, huggingface/transformers#31429 (the rule), ollama/ollama#6522: tokenizer_config.json may hold several named
templates; where tools are offered, transformers takes the one named tool_use (Hermes 2 Pro / 3, Command R). Newer folders have them
as files in additional_chat_templates/.

Expected: with tools the tool_use template is used (or the run is refused); the tools are never missing from the prompt in silence.
"""

from sf_unit import CALC, CHATML, folder, prompt, verdict

TOOL_USE = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML
BODY = {"model": "m", "tools": [CALC], "messages": [{"role": "user", "content": "hi"}]}
bad = []


def tried(name, where, wanted=True):
    try:
        text = prompt(where, BODY)
        found = '"calc"' in text
        print(f"{name:46}", "tools are in the prompt" if found else "TOOLS ARE MISSING, in silence")
        bad.extend([] if found == wanted else [name])
    except Exception as wrong:
        print(f"{name:46} refused: {type(wrong).__name__} {str(wrong)[:100]}")


tried("one template that shows tools (control)", folder(TOOL_USE))
tried(
    "list: default and tool_use", folder([{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TOOL_USE}])
)
where = folder(CHATML)
(where / "additional_chat_templates").mkdir()
(where / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)
tried("chat_template.jinja, additional_chat_templates/", where)
# a template that shows no tools at all (as the tiny model's) says nothing either: not counted, told here only
tried("(not counted) a template that shows no tools", folder(CHATML), wanted=False)
tried("list without a default", folder([{"name": "tool_use", "template": TOOL_USE}]))
verdict(not bad, f"offered tools are shown to the model (not: {bad})")
