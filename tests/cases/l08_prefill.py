"""JustVugg/colibri#1401, ggml-org/llama.cpp#11755, huggingface/transformers#33198: the last message is the assistant's; clients want it
continued (continue_final_message, prefix: true, add_generation_prompt: false) and get a new turn in silence.

docs/endpoint.md: "Refused with 400, because an agent would miss it: ... going on with an assistant's text".
Expected: 400 in every dialect, or it is continued.
"""

from sf_live import Episode, user, verdict

with Episode() as e:
    last = {"role": "assistant", "content": "The answer is"}
    tried = {
        "chat": e.chat(user("What is 1+1?"), last),
        "chat, continue_final_message": e.chat(
            user("What is 1+1?"), last, continue_final_message=True, add_generation_prompt=False
        ),
        "chat, prefix true": e.chat(user("What is 1+1?"), {**last, "prefix": True}),
        "messages": e.post("/v1/messages", {"model": "m", "max_tokens": 4, "messages": [user("What is 1+1?"), last]}),
        "responses": e.post("/v1/responses", {"model": "m", "max_output_tokens": 4, "input": [user("What is 1+1?"), last]}),
        "count_tokens (real API counts it)": e.post(
            "/v1/messages/count_tokens", {"model": "m", "messages": [user("What is 1+1?"), last]}
        ),
    }
    for name, got in tried.items():
        print(f"{name:36} {got.status} prompt tokens {got.prompt_tokens} {(got.error or '')[:110]}")
    silent = [name for name, got in tried.items() if got.status == 200 and not name.startswith("count")]
    verdict(not silent, f"going on with an assistant's text is refused (answered with a new turn: {silent})")
