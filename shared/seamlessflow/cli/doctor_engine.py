"""``seamlessflow doctor --engine NAME``: one engine put through its self-check, and a table of what came of it.

The engine and the trainer's forward pass run one after the other, each in a process of its own: they need packages that this
command does not have, and an engine may need an interpreter that the trainer cannot run in.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.engine_check import Check, EngineOrder, EngineReport, TrainerOrder, TrainerReport, all_right, judge
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.local.child_processes import die_with_parent
from seamlessflow.local.services import interpreter_of, python_path
from seamlessflow.local.supervisor import last_words

R = TypeVar("R", bound=BaseModel)

QUESTIONS = (
    "What is the capital of France?",
    "Add 17 and 25, and say how you did it.",
    "Name three animals that live in the sea.",
    "Why is the sky blue? Answer in one sentence.",
)
PROMPT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
"""ChatML, which both models that are prepared here speak. To others it is a text like any other."""
CONTEXT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to check."""

    engine: str
    model: str
    dtype: str
    num_tokens: int
    temperature: float
    deadline_seconds: float
    python: Path | None = None
    """Interpreter of the engine; None: the one that ``up`` would take for it."""
    config: RunConfig | None = None
    """Of a run file: its model section is what is checked, with the engine's options."""


def check_engine(wanted: Wanted, console: Console) -> bool:
    """Run it and show the table; returns whether all is right. Raises SeamlessFlowError where a process of it failed."""
    python, document = wanted.python or interpreter_of(wanted.engine), document_of(wanted)
    with tempfile.TemporaryDirectory(prefix="engine-check-") as scratch:
        place = _Place(Path(scratch), console, time.monotonic() + wanted.deadline_seconds)
        folder = Path(place.run("model", Path(sys.executable), ["-m", "seamlessflow.models", wanted.model]).splitlines()[-1])
        order = EngineOrder(
            document=document,
            folder=folder,
            scratch=place.folder("models"),
            prompts=tuple(PROMPT.format(question=question) for question in QUESTIONS),
            num_tokens=wanted.num_tokens,
            temperature=wanted.temperature,
        )
        engine = place.told("engine", python, "seamlessflow_rollout_worker.engine_check", order, EngineReport)
        question = TrainerOrder(
            document=document,
            base=order.scratch / "base",
            other=order.scratch / "other",
            drawn=engine.drawn,
            temperature=wanted.temperature,
            greedy=engine.first,
            greedy_of_other=engine.other,
        )
        trainer = place.told("trainer", Path(sys.executable), "seamlessflow_trainer.engine_check", question, TrainerReport)
    checks = judge(engine, trainer)
    title = f"{wanted.engine}, {wanted.model}, served in {engine.dtype}, trained in {trainer.dtype}"
    console.print(table_of(title, checks))
    return all_right(checks)


def document_of(wanted: Wanted) -> dict[str, object]:
    """The run document that the engine is built from. Raises ConfigError for an engine there is none of."""
    model = {"name": wanted.model, "engine": wanted.engine, "dtype": wanted.dtype, "max_context_tokens": CONTEXT_TOKENS}
    if wanted.config is not None:
        model = wanted.config.model.model_dump(mode="json", exclude_none=True) | {"engine": wanted.engine}
        if wanted.engine != wanted.config.model.engine:
            model.pop("engine_options", None)  # they are those of the other engine
    config = parse_run_config(
        {
            "model": model,
            "agents": [{"env": "check", "command": ["true"]}],
            "sampling": {"temperature": wanted.temperature},
            "algorithm": {"steps": 1, "learning_rate": 0},
            "fleet": {"slots": 2 * len(QUESTIONS)},
        },
        source=f"doctor --engine {wanted.engine}",
    )
    return config.document


def table_of(title: str, checks: list[Check]) -> Table:
    """For people: what was found, what is allowed, and whether it is right."""
    table = Table(title=title)
    for heading in ("check", "found", "allowed", ""):
        table.add_column(heading)
    words = {True: "[green]ok[/]", False: "[red]WRONG[/]", None: ""}
    for check in checks:
        table.add_row(check.name, check.found, check.allowed, words[check.is_right])
    return table


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder for what goes back and forth, and the time by which all must be done."""

    root: Path
    console: Console
    until: float

    def folder(self, name: str) -> Path:
        made = self.root / name
        made.mkdir()
        return made

    def told(self, name: str, python: Path, module: str, order: BaseModel, kind: type[R]) -> R:
        """What a process reports on an order."""
        asked, answer = self.root / f"{name}-order.json", self.root / f"{name}-report.json"
        asked.write_text(order.model_dump_json())
        self.run(name, python, ["-m", module, str(asked), str(answer)])
        return kind.model_validate_json(answer.read_text())

    def run(self, name: str, python: Path, arguments: list[str]) -> str:
        """A process to its end; returns its standard output. Raises SeamlessFlowError with its last words."""
        log = self.root / f"{name}.log"
        self.console.print(f"{name}: {python} {' '.join(arguments[:2])}", style="dim", markup=False)
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
        try:
            with log.open("wb") as errors:
                done = subprocess.run(
                    [python, *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    timeout=max(1.0, self.until - time.monotonic()),
                    preexec_fn=partial(die_with_parent, os.getpid()),
                    check=False,
                )
        except OSError as wrong:
            raise SeamlessFlowError(f"{name}: {python} cannot be run: {wrong.strerror or wrong}") from wrong
        except subprocess.TimeoutExpired as wrong:
            said = "\n  ".join(last_words(log))
            raise SeamlessFlowError(f"{name}: not done in time, and stopped; its last words:\n  {said}") from wrong
        if done.returncode:
            said = "\n  ".join(last_words(log))
            raise SeamlessFlowError(f"{name}: ended with {done.returncode}; its last words:\n  {said}")
        return done.stdout.decode()
