"""An agent that answers, is asked to check itself, and answers again. An ordinary program that knows nothing of training."""

import sys

from openai import DefaultHttpxClient, OpenAI

HTTP = DefaultHttpxClient()  # made once: making it reads every root certificate
CHECK = "Check your answer. Reply with only the final number."


def run(task: dict) -> str:
    client = OpenAI(http_client=HTTP)
    messages = [{"role": "user", "content": task["prompt"]}]
    first = ask(client, messages)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": CHECK}]
    return ask(client, messages)


def ask(client: OpenAI, messages: list) -> str:
    answer = client.chat.completions.create(model="policy", messages=messages)
    return answer.choices[0].message.content or ""


if __name__ == "__main__":
    print(run({"prompt": sys.argv[1]}))
