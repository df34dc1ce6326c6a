"""Tasks: the split between training and held-out questions, and the endless stream of training tasks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.datasets import (
    Question,
    Questions,
    evaluation_tasks,
    is_held_out,
    load_questions,
    split_questions,
    training_task,
)
from seamlessflow.errors import ConfigError

ONE_DIGIT_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def config(**changed):
    document = {
        "model": {"name": "m"},
        "tasks": {"options": ONE_DIGIT_SUMS, "num_questions": 2000},
        "agents": [{"env": "single", "entrypoint": "a:b", "share": 2}, {"env": "check", "entrypoint": "a:b"}],
        "algorithm": {"steps": 2},
    }
    return parse_run_config({**document, **changed})


@given(st.lists(st.text(max_size=8)), st.integers(0, 90))
def test_no_question_is_both_trained_and_held_out(texts, percent):
    """Whatever the data set repeats, each distinct text lands on exactly one side."""
    split = split_questions([Question(text, {}) for text in texts], percent)
    training, held_out = {q.text for q in split.training}, {q.text for q in split.held_out}

    assert not training & held_out
    assert training | held_out == set(texts)
    assert len(split.training) + len(split.held_out) == len(set(texts))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_holds_out_the_same_questions_in_every_run(seed):
    """The split is by text: other seeds shuffle the data set but never move a question across."""
    questions = load_questions(config().tasks, seed)
    held_out = {q.text for q in questions.held_out}

    assert not held_out & {q.text for q in questions.training}
    assert all(is_held_out(text, 20) for text in held_out)
    assert len(questions.training) + len(held_out) == 200
    assert 30 <= len(held_out) <= 50


def test_an_unknown_data_set_is_said():
    """A wrong name is answered with the name and what the library said."""
    with pytest.raises(ConfigError, match="no_such_set"):
        load_questions(config(tasks={"dataset": "no_such_set"}).tasks, 0)


def two_questions(num_questions, seed):
    return [{"question": "1+1", "answer": "2"}, {"question": "1+2", "answer": "3"}]


def no_questions(num_questions, seed):
    return ["1+1"]


def test_a_template_may_show_json():
    """Only {question} is replaced; all other braces reach the agent as they were written."""
    tasks = {"source": f"{__name__}:two_questions", "held_out_percent": 0, "question_template": '{"ask": {question}}'}
    questions = load_questions(config(tasks=tasks).tasks, 0)

    assert [q.text for q in questions.training] == ['{"ask": 1+1}', '{"ask": 1+2}']


def test_an_own_source_that_gives_something_else_is_said():
    """With what it gave."""
    with pytest.raises(ConfigError, match="no_questions gave 1\\+1; expected a mapping"):
        load_questions(config(tasks={"source": f"{__name__}:no_questions"}).tasks, 0)


def test_agents_take_turns_by_their_shares():
    """A share of two gets twice the tasks of a share of one, at any point."""
    questions = Questions(tuple(Question(str(i), {}) for i in range(5)), ())
    envs = Counter(training_task("r", config(), questions, index).env for index in range(30))

    assert envs == {"single": 20, "check": 10}


def test_every_question_comes_once_before_any_comes_twice():
    """Each pass over the questions is a new shuffle without repetition."""
    questions = Questions(tuple(Question(str(i), {}) for i in range(5)), ())
    prompts = [t.prompt for i in range(30) if (t := training_task("r", config(), questions, i)).env == "check"]

    assert sorted(prompts[:5]) == sorted(prompts[5:10]) == ["0", "1", "2", "3", "4"]


def test_a_training_task_is_the_same_whenever_it_is_asked_for():
    """A resumed run publishes the very tasks it would have published."""
    questions = Questions(tuple(Question(str(i), {}) for i in range(5)), ())

    assert training_task("r", config(), questions, 17) == training_task("r", config(), questions, 17)


def test_each_agent_is_evaluated_on_every_held_out_question_in_each_round():
    """Both rounds ask the same."""
    questions = Questions((), tuple(Question(str(i), {}) for i in range(3)))
    rounds = Counter((t.evaluation, t.env) for t in evaluation_tasks("r", config(), questions))

    assert rounds == {(r, env): 3 for r in ("before", "after") for env in ("single", "check")}
