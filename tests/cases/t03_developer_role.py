"""sgl-project/sglang#40082, ollama/ollama#18305: messages of role developer are left out of the prompt in silence by templates that
know only system, user, assistant and tool (Qwen2.5, Qwen3 and their fine-tunes); other templates refuse the role.

Expected: an accepted instruction reaches the model, or the request is refused. Never 200 with the text missing.
"""

from sf_unit import folder, prompt, verdict

QWEN = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>{{ m.content }}</tool_response><|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    QWEN.replace("{% endif %}{% endfor %}", "{% else %}{{ raise_exception('unexpected role') }}{% endif %}{% endfor %}", 1)
    if False
    else (
        "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant', 'tool') %}{{ raise_exception('unexpected role ' + m.role) }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
)
CASES = {
    "chat, first": (
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "developer", "content": "SAY-BANANA"}, {"role": "user", "content": "hi"}]},
    ),
    "chat, in the middle": (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "developer", "content": "SAY-BANANA"},
                {"role": "user", "content": "go"},
            ],
        },
    ),
    "responses, item": (
        "/v1/responses",
        {"model": "m", "input": [{"role": "developer", "content": "SAY-BANANA"}, {"role": "user", "content": "hi"}]},
    ),
    "responses, instructions (control)": ("/v1/responses", {"model": "m", "instructions": "SAY-BANANA", "input": "hi"}),
    "responses, instructions and item (Codex)": (
        "/v1/responses",
        {
            "model": "m",
            "instructions": "be good",
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "SAY-BANANA"}]},
                {"role": "user", "content": "hi"},
            ],
        },
    ),
}
lost = []
for template_name, template in (("Qwen-like", QWEN), ("strict", STRICT)):
    where = folder(template)
    for name, (path, body) in CASES.items():
        try:
            text = prompt(where, body, path)
            found = "SAY-BANANA" in text
            print(f"{template_name:10} {name:42}", "in the prompt" if found else "LOST IN SILENCE")
            lost += [] if found else [name]
        except Exception as wrong:
            print(f"{template_name:10} {name:42} refused: {str(wrong)[:90]}")
            lost += [name] if "item" in name or "chat" in name else []
from sf_unit import byte_tokenizer
from tokenizers import AddedToken  # the exact renderer that is taken for the hub ids Qwen/Qwen3-*

from seamlessflow.tokenization.tokenizer import ChatTokenizer
from seamlessflow_trajectory_manager.rendering.renderers_library import library_renderer

words = byte_tokenizer()
words.add_special_tokens([AddedToken(t, special=True) for t in ("<tool_response>", "</tool_response>")])
words.add_tokens(
    [AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
)
exact = library_renderer(
    ChatTokenizer(words, named={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, name_or_path="Qwen/Qwen3-8B"), "qwen3"
)
text = exact.visible.written(
    exact.render([{"role": "developer", "content": "SAY-BANANA"}, {"role": "user", "content": "hi"}], None)
)
print("renderers package, qwen3:", repr(text))
lost += [] if "SAY-BANANA" in text else ["renderers package, qwen3"]
verdict(not lost, f"developer messages reach the model (not: {sorted(set(lost))})")
