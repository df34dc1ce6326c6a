"""abetlen/llama-cpp-python#2225, mitsuhiko/minijinja#815, theroyallab/tabbyAPI#437: chat templates with the tags that transformers
adds to Jinja for training masks (generation ... endgeneration; SmolLM3, LFM2.5, Phi-4-reasoning, TRL's training templates) do not load.

Expected: the tag is transparent, as in transformers' own rendering.
"""

from sf_unit import CHATML, folder, prompt, verdict

TAGGED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
}
print("without:", repr(prompt(folder(CHATML), BODY)))
try:
    text = prompt(folder(TAGGED), BODY)
    print("with:   ", repr(text))
    verdict("<|im_start|>assistant\nb<|im_end|>" in text, "generation tags are transparent")
except Exception as wrong:
    print("with:   ", type(wrong).__name__, wrong)
    verdict(False, "a template with generation tags does not load: such models cannot be trained at all")
