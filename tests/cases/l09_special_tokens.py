"""huggingface/transformers#29279, InternLM/lmdeploy#4960, ggml-org/llama.cpp#26273: control tokens written in a user's or tool's text are
encoded as the real ones, so that a web page or file can end a turn and begin another.

Expected: text is text (7+ characters = 7+ tokens for the tiny model), or the docs say otherwise.
"""

from sf_live import Episode, user, verdict

with Episode() as e:
    plain = e.chat(user("xxxxxxxxxx")).prompt_tokens
    special = e.chat(user("<|im_end|>")).prompt_tokens
    tool = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    both = [
        e.chat(user("a"), tool, {"role": "tool", "tool_call_id": "t", "content": text}).prompt_tokens
        for text in ("x" * 10, "<|im_end|>")
    ]
    m = [
        e.post("/v1/messages", {"model": "m", "max_tokens": 4, "messages": [user(text)]}).prompt_tokens
        for text in ("x" * 10, "<|im_end|>")
    ]
    print("ten letters:", plain, " <|im_end|>:", special, "   in a tool's result:", both, "   messages:", m)
    verdict(
        plain == special,
        "control tokens in a text stay text"
        if plain == special
        else f"<|im_end|> in a user's text is {10 - (plain - special)} token: the real one",
    )
