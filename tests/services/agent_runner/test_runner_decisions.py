"""The runner's pure parts: shared credit, what an ending means, what a process uses; and the demo's tools."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.demo.calculator import calc
from deploy.demo.verifiers import last_number
from seamlessflow.config.sampling_sections import AgentSection
from seamlessflow.contracts import EpisodeStatus
from seamlessflow_agent_runner.episodes.agent_launch import outcome_of
from seamlessflow_agent_runner.episodes.verifier_process import judged
from seamlessflow_agent_runner.processes.agent_process import Cause, ProcessEnd
from seamlessflow_agent_runner.processes.memory_limit import memory_by_session, own_bytes
from seamlessflow_agent_runner.run import shared_credits

RUNNING = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), max_size=4)


@given(RUNNING, st.integers(0, 30))
def test_credits_never_exceed_the_places(running: dict[str, int], total: int) -> None:
    """What is pulled has a place; what runs keeps its own; no place is left unused while there is a queue."""
    credits = shared_credits(running, total)

    assert all(credits[env] >= count for env, count in running.items())
    assert sum(credits.values()) == (max(total, sum(running.values())) if running else 0)


@given(RUNNING, st.integers(0, 30))
def test_no_queue_is_shut_out_while_places_are_free(running: dict[str, int], total: int) -> None:
    """With at least as many free places as queues, each queue may pull."""
    if total - sum(running.values()) >= len(running):
        assert all(shared_credits(running, total)[env] > count for env, count in running.items())


@given(st.sampled_from(Cause), st.integers(-15, 5), st.binary(max_size=20), st.none() | st.just({"answer": "a"}))
def test_only_an_agent_that_exits_with_0_has_an_answer(cause: Cause, code: int, stdout: bytes, result: object) -> None:
    """Everything else is a failure with a reason; COMPLETED and an answer go together."""
    code = code if code >= 0 else -15
    ending = ProcessEnd(cause, code, stdout, b"", result, 1.0)  # type: ignore[arg-type]

    outcome = outcome_of(ending, AgentSection(env="e", command=("true",)))

    assert (outcome.status is EpisodeStatus.COMPLETED) == (outcome.answer is not None) == (cause is Cause.EXIT and code == 0)
    assert bool(outcome.reason) == (outcome.answer is None)


@given(st.floats() | st.integers() | st.booleans() | st.text() | st.none() | st.lists(st.integers()))
def test_a_reward_is_a_finite_number_or_there_is_none(returned: object) -> None:
    """Whatever a verifier returns."""
    said = judged(lambda answer, task: returned, "", {})

    assert said.keys() in ({"reward"}, {"wrong"})
    if "reward" in said:
        assert abs(said["reward"]) < float("inf")


class NoNumber:
    """Has the method of a number, as an array of many numbers has."""

    def __init__(self, wrong: BaseException) -> None:
        self._wrong = wrong

    def __float__(self) -> float:
        raise self._wrong


@pytest.mark.parametrize("wrong", [ValueError("2 elements"), RuntimeError("not computed yet"), SystemExit(1)])
def test_a_reward_that_cannot_become_a_number_is_the_verifiers_fault(wrong: BaseException) -> None:
    """The judge lives on and says what it got."""
    said = judged(lambda answer, task: NoNumber(wrong), "", {})

    assert f"NoNumber, expected a number: {type(wrong).__name__}" in said["wrong"]
    assert "OverflowError" in judged(lambda answer, task: 10**400, "", {})["wrong"]


def test_memory_is_summed_over_a_session_and_nobody_elses_is_looked_at() -> None:
    """A session without processes, such as one that has just ended, uses nothing."""
    ours, nobody = os.getsid(0), 1 << 30

    used = memory_by_session({ours, nobody})

    assert used[ours] > 1 << 20
    assert used[nobody] == 0


def test_own_memory_leaves_out_what_files_back() -> None:
    """Resident minus shared, in pages of /proc/<pid>/statm."""
    assert own_bytes("1000 500 200 1 0 300 0") == 300 * own_bytes("1 1 0 0 0 0 0")


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"expression": "3 + 4 * (2 - 5)"}', "-9"),
        ('{"expression": "-2"}', "-2"),
        ('{"expression": "2 ** 99"}', "error: ValueError"),
        ('{"expression": "__import__(\'os\')"}', "error: ValueError"),
        ('{"expression": "1.5 + 1"}', "error: ValueError"),
        ('{"expression": "3 +"}', "error: SyntaxError"),
        ("not json", "error: JSONDecodeError"),
        ("[]", "error: TypeError"),
        ("{}", "error: KeyError"),
    ],
)
def test_the_calculator_works_out_sums_and_nothing_else(arguments: str, result: str) -> None:
    """A model may write anything as arguments; mistakes are told to it."""
    assert calc("calc", arguments) == result


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("7", 1.0), ("The answer is 7.", 1.0), ("3 + 4 = 7", 1.0), ("7, or 8", 0.0), ("-7", 0.0), ("", 0.0), ("7.0", 1.0)],
)
def test_the_last_number_counts(answer: str, reward: float) -> None:
    """Chatting around it neither helps nor hurts."""
    assert last_number(answer, {"data": {"entry": {"answer": "7"}}}) == reward
