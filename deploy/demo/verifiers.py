"""Verifiers for the demo: ``function(answer, task) -> float``. A reasoning-gym entry in the task's data holds what is right."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def last_number(answer: str, task: dict) -> float:
    """1.0 when the last number in the answer is the right one, else 0.0."""
    numbers = NUMBER.findall(answer.replace(",", ""))
    expected = float(task["data"]["entry"]["answer"])
    return float(bool(numbers) and float(numbers[-1]) == expected)
