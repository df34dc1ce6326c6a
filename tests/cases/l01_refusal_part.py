"""CommandCodeAI/command-code#820, openai/openai-agents-js#1524: an assistant's turn whose content is a list of parts, one of them of
type refusal, is blanked, refused, or shown to the model as JSON.

Expected: the same prompt as for the same words as text (the responses dialect does so).
"""

from sf_live import Episode, user, verdict

with Episode() as e:

    def history(content):
        return e.chat(user("a"), {"role": "assistant", "content": content}, user("b")).prompt_tokens

    text = history([{"type": "text", "text": "I cannot."}])
    refusal = history([{"type": "refusal", "refusal": "I cannot."}])
    field = e.chat(user("a"), {"role": "assistant", "content": None, "refusal": "I cannot."}, user("b")).prompt_tokens
    nothing = history("")
    r = lambda part: (
        e.post(
            "/v1/responses",
            {
                "model": "m",
                "max_output_tokens": 4,
                "input": [
                    {"role": "user", "content": "a"},
                    {"type": "message", "role": "assistant", "content": [part]},
                    {"role": "user", "content": "b"},
                ],
            },
        ).prompt_tokens
    )
    print(
        "chat, text part:",
        text,
        "  refusal part:",
        refusal,
        "  refusal field with null content:",
        field,
        "  empty turn:",
        nothing,
    )
    print(
        "responses, output_text:",
        r({"type": "output_text", "text": "I cannot."}),
        "  refusal:",
        r({"type": "refusal", "refusal": "I cannot."}),
    )
    verdict(refusal == text, f"a refusal part reads as its words ({refusal} prompt tokens instead of {text})")
