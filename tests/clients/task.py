"""The task of every episode, and who judges it: imported by verifier processes, so it imports nothing."""

PROMPT = "Add 2 and 3 with the calculator tool."
ANSWER = "The sum of 2 and 3 is 5."


def says_the_answer(printed: str, task: dict[str, object]) -> float:
    """1 where the last line that the program printed is the answer, whole and once."""
    return float(printed.strip().splitlines()[-1:] == [ANSWER])
