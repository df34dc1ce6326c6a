"""PrimeIntellect-ai/verifiers#538, ggml-org/llama.cpp#13160, sgl-project/sglang#20573: agents turn a hybrid model's thinking off with
chat_template_kwargs (vLLM, SGLang, llama.cpp) or with reasoning_effort (OpenAI), and operators with a default of the server.

Expected: honoured, or refused, or at least told once in the log (docs/endpoint.md: "nothing else is ignored in silence").
"""

from sf_unit import CHATML, asked, folder, prompt, verdict

HYBRID = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)
where = folder(HYBRID)
base = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
WAYS = {
    "chat_template_kwargs": ("/v1/chat/completions", {**base, "chat_template_kwargs": {"enable_thinking": False}}),
    "enable_thinking at the top": ("/v1/chat/completions", {**base, "enable_thinking": False}),
    "reasoning_effort none": ("/v1/chat/completions", {**base, "reasoning_effort": "none"}),
    "responses reasoning.effort none": ("/v1/responses", {"model": "m", "input": "hi", "reasoning": {"effort": "none"}}),
    "messages thinking disabled": (
        "/v1/messages",
        {"model": "m", "max_tokens": 5, "messages": base["messages"], "thinking": {"type": "disabled"}},
    ),
}
silent = []
for name, (path, body) in WAYS.items():
    try:
        request = asked(body, path)
        is_off = "</think>" in prompt(where, body, path)
        print(f"{name:34} thinking off: {is_off}; notes for the log: {list(request.notes)}")
        silent += [] if is_off or request.notes else [name]
    except Exception as wrong:
        print(f"{name:34} refused: {str(wrong)[:90]}")
import seamlessflow.config.sampling_sections as s

fields = [f for section in (s.ModelSection, s.SamplingSection) for f in section.model_fields]
print(
    "keys of [model] and [sampling] by which a run could set it:", [f for f in fields if "templ" in f or "think" in f] or "none"
)
verdict(not silent, f"thinking can be turned off or is refused (ignored in silence: {silent})")
