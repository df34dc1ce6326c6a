"""The simplest agent: asks its model once and returns the answer. An ordinary program that knows nothing of training."""

import sys

from openai import DefaultHttpxClient, OpenAI

HTTP = DefaultHttpxClient()  # made once: making it reads every root certificate


def run(task: dict) -> str:
    answer = OpenAI(http_client=HTTP).chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": task["prompt"]}],
    )
    return answer.choices[0].message.content or ""


if __name__ == "__main__":
    print(run({"prompt": sys.argv[1]}))
