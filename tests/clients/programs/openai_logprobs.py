"""The official openai client, asking for the logprobs of each token: prints what the tokens join to."""

import sys

from openai import OpenAI

client = OpenAI(timeout=4)  # seconds of silence: less than a pause
messages = [{"role": "user", "content": sys.argv[1]}]
answer = client.chat.completions.create(model="any-model", messages=messages, logprobs=True)
listed = answer.choices[0].logprobs.content
assert len(listed) == answer.usage.completion_tokens, (len(listed), answer.usage)
assert all(token.logprob <= 0.0 for token in listed)
assert b"".join(bytes(token.bytes) for token in listed).decode() == "".join(token.token for token in listed)
print("".join(token.token for token in listed))
