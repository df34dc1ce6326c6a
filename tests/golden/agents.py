"""Agents and the verifier of the golden runs: each makes one thing happen that a journal should hold.

calculator   calls a tool (the demo's agent)
compactor    talks until its prompt is too long, drops the oldest turns and goes on: a fork, ``messages_removed``
rewriter     changes an earlier question, then an earlier answer: forks, ``messages_changed`` and ``rewritten_turn``
teller       asks for a long text and reads along: generations that are in flight when a device changes hands or dies
"""

from openai import BadRequestError, DefaultHttpxClient, OpenAI

from deploy.demo import calculator

HTTP = DefaultHttpxClient()  # made once: making it reads every root certificate
MAX_TURNS = 12
KEPT_MESSAGES = 3

calculate = calculator.run


def compact(task: dict) -> str:
    """Turn after turn; after the first compaction one more."""
    client, messages = OpenAI(http_client=HTTP), []
    for turn in range(MAX_TURNS):
        messages.append({"role": "user", "content": task["prompt"] if turn == 0 else f"What is {turn}+{turn}?"})
        try:
            messages.append(_said(client, messages))
        except BadRequestError:  # the prompt is too long
            return _said(client, messages[-KEPT_MESSAGES:])["content"]
    return messages[-1]["content"]


def rewrite(task: dict) -> str:
    """Four calls: two turns, then another first question, then another second answer."""
    client, messages = OpenAI(http_client=HTTP), [{"role": "user", "content": task["prompt"]}]
    messages += [_said(client, messages), {"role": "user", "content": "What is 10+10?"}]
    messages += [_said(client, messages), {"role": "user", "content": "What is 11+11?"}]
    _said(client, [{"role": "user", "content": "What is 12+12?"}, *messages[1:]])
    return _said(client, [*messages[:3], {"role": "assistant", "content": "20"}, *messages[4:]])["content"]


def tell(task: dict) -> str:
    """One call, streamed."""
    asked = [{"role": "user", "content": task["prompt"].replace("What is", "Tell")}]
    stream = OpenAI(http_client=HTTP).chat.completions.create(model="policy", messages=asked, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def parity(answer: str, task: dict) -> float:
    """0 or 1, so that most groups have both."""
    return float(sum(map(ord, answer)) % 2)


def _said(client: OpenAI, messages: list[dict]) -> dict:
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=12)
    return {"role": "assistant", "content": answer.choices[0].message.content or ""}
