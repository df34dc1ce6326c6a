"""The tasks of a run without a task publisher: procedural data sets, split once and for all.

The split is by a digest of the question's text, never by seed or position: data sets with few different questions repeat
themselves, and a question that is held out stays held out in every run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config.run import RunConfig
from .config.sampling_sections import TasksSection
from .contracts import TaskSubmitted
from .errors import ConfigError


@dataclass(frozen=True)
class Question:
    """One question of a data set with all its scorer needs."""

    text: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Questions:
    """A data set without repetitions, split."""

    training: tuple[Question, ...]
    held_out: tuple[Question, ...]


def is_held_out(text: str, percent: int) -> bool:
    """Whether a question is only ever evaluated."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big") % 100 < percent


def split_questions(questions: list[Question], percent: int, max_held_out: int | None = None) -> Questions:
    """Remove repetitions and split; both parts keep the order of the data set."""
    distinct = list({question.text: question for question in questions}.values())
    held_out = [q for q in distinct if is_held_out(q.text, percent)]
    training = [q for q in distinct if not is_held_out(q.text, percent)]
    return Questions(tuple(training), tuple(held_out[:max_held_out]))


def load_questions(section: TasksSection, seed: int) -> Questions:
    """All questions a run file asks for, split; none for ``queue``. Raises ConfigError that names what cannot be made."""
    if section.source == "queue":
        return Questions((), ())
    entries = (_reasoning_gym if section.source == "reasoning_gym" else _own_source)(section, seed)
    made = [_question(section, entry) for entry in entries]
    split = split_questions(made, section.held_out_percent, section.max_held_out)
    if not split.training:
        raise ConfigError(f"tasks: no training question is left of {len(made)}; lower held_out_percent or raise num_questions")
    return split


def _question(section: TasksSection, entry: Any) -> Question:
    if not isinstance(entry, Mapping) or "question" not in entry:
        raise ConfigError(f"tasks.source: {section.source} gave {str(entry)[:200]}; expected a mapping that holds 'question'")
    # Not str.format: a template may show JSON, braces and all.
    text = section.question_template.replace("{question}", str(entry["question"]))
    return Question(text, {"dataset": section.dataset, "entry": json.loads(json.dumps(entry, default=str))})


def _reasoning_gym(section: TasksSection, seed: int) -> list[Any]:
    import reasoning_gym

    try:
        dataset = reasoning_gym.create_dataset(section.dataset, size=section.num_questions, seed=seed, **section.options)
        return [dataset[index] for index in range(section.num_questions)]
    except Exception as wrong:  # the library raises many kinds for a wrong name, option or value
        raise ConfigError(f"tasks: reasoning-gym cannot make {section.dataset!r} with {section.options}: {wrong}") from wrong


def _own_source(section: TasksSection, seed: int) -> list[Any]:
    module, _, function = section.source.partition(":")
    try:
        return list(getattr(importlib.import_module(module), function)(section.num_questions, seed, **section.options))
    except Exception as wrong:  # the user's own code
        raise ConfigError(f"tasks.source: {section.source} failed with {type(wrong).__name__}: {wrong}") from wrong


def evaluation_tasks(run: str, config: RunConfig, questions: Questions) -> list[TaskSubmitted]:
    """Every held-out question for every agent, for each round the run wants."""
    rounds = [name for name, wanted in (("before", config.evaluation.before), ("after", config.evaluation.after)) if wanted]
    return [
        TaskSubmitted(run=run, task=f"{name}-{env}-{index}", env=env, prompt=question.text, data=question.data, evaluation=name)
        for name in rounds
        for index, question in enumerate(questions.held_out)
        for env in config.envs
    ]


def training_task_id(index: int) -> str:
    """Id of the ``index``-th training task."""
    return f"train-{index}"


def training_task(run: str, config: RunConfig, questions: Questions, index: int) -> TaskSubmitted:
    """The ``index``-th training task: agents by their shares in turn, questions in an order reshuffled each time through."""
    turns = [agent.env for agent in config.agents for _ in range(agent.share)]
    env, position = turns[index % len(turns)], index // len(turns)
    epoch, offset = divmod(position, len(questions.training))
    order = list(range(len(questions.training)))
    random.Random(f"{config.seed}/{env}/{epoch}").shuffle(order)  # noqa: S311 - not a secret
    question = questions.training[order[offset]]
    return TaskSubmitted(run=run, task=training_task_id(index), env=env, prompt=question.text, data=question.data)
