"""The official openai client over legacy completions: prints how the text goes on. ``stream`` as second word."""

import sys

from openai import OpenAI

client = OpenAI(timeout=4)  # seconds of silence: less than a pause
options = {"model": "any-model", "prompt": sys.argv[1], "max_tokens": 200}
if sys.argv[2:] == ["stream"]:
    print("".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True)))
else:
    print(client.completions.create(**options).choices[0].text)
