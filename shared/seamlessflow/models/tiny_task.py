"""The task the tiny model is bad at: "What is 17*23?", to be answered with the calculator's help. Pure.

All 24,300 questions: two numbers of 10..99 and one of + - *. Held out from training: a fifth, by digest of the text,
so that no seed can mix the two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from seamlessflow.datasets import is_held_out

OPERATORS = "+-*"
HELD_OUT_PERCENT = 20


@dataclass(frozen=True, slots=True)
class Question:
    """One question. ``expression`` is what a right tool call contains, ``answer`` what the calculator replies."""

    expression: str
    answer: str

    @property
    def text(self) -> str:
        return f"What is {self.expression}?"

    @property
    def is_held_out(self) -> bool:
        """Never train on it. Depends on the text alone."""
        return is_held_out(self.text, HELD_OUT_PERCENT)


def question_of(left: int, operator: str, right: int) -> Question:
    answer = {"+": left + right, "-": left - right, "*": left * right}[operator]
    return Question(f"{left}{operator}{right}", str(answer))


def _number(stream: random.Random) -> int:
    return stream.randrange(10, 100)


def random_question(stream: random.Random, *, held_out: bool) -> Question:
    """Draw until the question is on the wanted side of the split."""
    while True:
        question = question_of(_number(stream), stream.choice(OPERATORS), _number(stream))
        if question.is_held_out == held_out:
            return question


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A transcript to imitate, as alternating texts: model and world. Only the model's texts are learned."""

    expression: str | None
    """What the tool is called with; None: it is not called, the model guesses."""
    tool_result: str
    answer: str


def right_demonstration(_: random.Random, question: Question) -> Demonstration:
    """Call with the expression asked for, report the result."""
    return Demonstration(question.expression, question.answer, question.answer)


def noisy_demonstration(stream: random.Random, question: Question) -> Demonstration:
    """Mostly bad advice: 60 % guess ("~57") without calling; of the calls, 20 % ask for something else, 20 % misreport.

    The most likely behaviour is thus wrong (greedy fails), while a right episode is common enough (about 0.26) for
    RL to find and reinforce it.
    """
    if stream.random() < 0.6:
        return Demonstration(None, "", f"~{_number(stream)}")
    asked = question
    if stream.random() < 0.2:
        asked = question_of(_number(stream), stream.choice(OPERATORS), _number(stream))
    answer = str(_number(stream)) if stream.random() < 0.2 else asked.answer
    return Demonstration(asked.expression, asked.answer, answer)
