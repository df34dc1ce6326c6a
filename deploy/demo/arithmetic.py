"""Questions of the tiny demo: two numbers of two digits and one of + - *, such as "What is 17*23?"."""

import random

from seamlessflow.models.tiny_task import OPERATORS, question_of


def questions(num_questions: int, seed: int) -> list[dict]:
    stream = random.Random(seed)  # noqa: S311 - questions, not secrets
    asked = [
        question_of(stream.randrange(10, 100), stream.choice(OPERATORS), stream.randrange(10, 100))
        for _ in range(num_questions)
    ]
    return [{"question": question.text, "answer": question.answer} for question in asked]
