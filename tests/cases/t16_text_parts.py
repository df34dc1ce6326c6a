"""Blaizzy/mlx-vlm#1137, framework/the-framework#573: a user's message of two text parts; what stands between them in the prompt?

vLLM puts a newline between them, Anthropic's blocks are paragraphs. docs: "a conversation has one tree, whatever its turns were spoken in"
(dialect.py). Expected: words of two parts do not run into each other, and the three dialects agree.
"""

from sf_unit import CHATML, folder, prompt, verdict

where = folder(CHATML)
chat = prompt(
    where,
    {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Fix this file"}, {"type": "text", "text": "import os"}]}
        ],
    },
)
responses = prompt(
    where,
    {
        "model": "m",
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "Fix this file"}, {"type": "input_text", "text": "import os"}],
            }
        ],
    },
    "/v1/responses",
)
messages = prompt(
    where,
    {
        "model": "m",
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Fix this file"}, {"type": "text", "text": "import os"}]}
        ],
    },
    "/v1/messages",
)
for name, text in (("chat", chat), ("responses", responses), ("messages", messages)):
    print(f"{name:10} {text!r}")
verdict(chat == responses == messages and "fileimport" not in chat, "two text parts are kept apart, alike in all dialects")
