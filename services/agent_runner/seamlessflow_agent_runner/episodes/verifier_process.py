"""The process of a verifier, which may hang, crash or print without harm to the runner.

``python -m seamlessflow_agent_runner.episodes.verifier_process FD PARENT REWARD DATASET``. One JSON line a
request ``{"answer", "task"}``, one a reply ``{"reward": number}`` or ``{"wrong": reason}``; first of all ``{"ready": true}``
or ``{"wrong": reason}``.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from seamlessflow.local import child_processes
from seamlessflow_agent_runner.processes.agent_child import NotStartable, load_entrypoint

Verifier = Callable[[str, dict[str, Any]], Any]
REASONING_GYM = "reasoning_gym"


def reasoning_gym_verifier(dataset: str) -> Verifier:
    """The data set's own scorer on the entry in the task's data. The entry's source wins over the configured data set."""
    import reasoning_gym

    scorer_of = cache(reasoning_gym.get_score_answer_fn)
    scorer_of(dataset)

    def score(answer: str, task: dict[str, Any]) -> float:
        entry = task["data"].get("entry")
        if not isinstance(entry, dict):
            raise ValueError("reward = 'reasoning_gym' needs the data set's entry under 'entry' in the task's data")
        source = entry.get("metadata", {}).get("source_dataset") or dataset
        return float(scorer_of(source)(answer, entry))

    return score


def load_verifier(reward: str, dataset: str) -> Verifier:
    """The verifier named by a run's ``reward``. Raises NotStartable."""
    if reward != REASONING_GYM:
        return load_entrypoint(reward)  # type: ignore[return-value]
    try:
        return reasoning_gym_verifier(dataset)
    except Exception as wrong:
        raise NotStartable(f"reasoning-gym has no usable scorer for {dataset!r}: {type(wrong).__name__}: {wrong}") from wrong


def judged(verifier: Verifier, answer: str, task: dict[str, Any]) -> dict[str, Any]:
    """The reward, or the verifier's fault: it raised, or returned no finite number."""
    try:
        reward = verifier(answer, task)
    except BaseException as wrong:  # sys.exit in a verifier is a failure like any other
        return {"wrong": f"the verifier raised {type(wrong).__name__}: {wrong}"[:2000]}
    if isinstance(reward, str | bytes) or not hasattr(reward, "__float__"):
        return {"wrong": f"the verifier returned {type(reward).__name__} {str(reward)[:100]!r}, expected a finite number"}
    try:
        number = float(reward)
    except BaseException as wrong:  # a tensor of many numbers, a huge int, a class of the verifier's own
        return {
            "wrong": f"the verifier returned {type(reward).__name__}, expected a number: {type(wrong).__name__}: {wrong}"[:2000]
        }
    if not math.isfinite(number):
        return {"wrong": f"the verifier returned {number}, expected a finite number"}
    return {"reward": number}


def main(descriptor: int, parent: int, reward: str, dataset: str) -> None:
    """Serve requests on a socket until its other end closes."""
    child_processes.hide_secrets()  # agents cannot trace what judges them
    child_processes.die_with_parent(parent)
    link = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    lines = link.makefile("rw", encoding="utf-8", newline="\n")

    def send(reply: dict[str, Any]) -> None:
        lines.write(json.dumps(reply) + "\n")
        lines.flush()

    try:
        verifier = load_verifier(reward, dataset)
    except NotStartable as wrong:
        return send({"wrong": str(wrong)[:4000]})
    send({"ready": True})
    for line in lines:
        asked = json.loads(line)
        send(judged(verifier, asked["answer"], asked["task"]))
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
