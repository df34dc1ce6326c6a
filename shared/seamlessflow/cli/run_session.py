"""One command's part in a run: asking for it, feeding it, following it, and what to say when it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import tomli_w
from rich.console import Console

from seamlessflow.checkpoints.commit_history import Commit, CommitHistory
from seamlessflow.client import Client
from seamlessflow.config.run import RunConfig, load_run_config
from seamlessflow.contracts import EpisodeStatus
from seamlessflow.datasets import Questions, evaluation_tasks, load_questions, training_task, training_task_id
from seamlessflow.errors import ConfigError
from seamlessflow.redaction import without_password
from seamlessflow.reports.run_view import RunView

from .follow import Follower
from .options import program
from .preflight import check_agents, check_engine, check_folder, check_store, prepare_model
from .results import finish, write_summary
from .run_location import Address, Folder
from .shutdown import EXIT_CODE, Interrupt, end

# Publishing a run's own tasks, a few steps ahead of what was admitted.


AHEAD_STEPS = 3
"""Training tasks are published this many steps ahead of what was admitted."""
LOOK_SECONDS = 0.2


async def feed(client: Client, run: str, config: RunConfig, questions: Questions, view: RunView) -> None:
    """Until cancelled. ``view`` has seen the whole journal: what is in there already is not published again.

    With ``tasks.source = "queue"`` users feed the run instead, and this returns at once.
    """
    if not questions.training or view.ended is not None:
        return
    for task in evaluation_tasks(run, config, questions):
        if task.task not in view.tasks:
            await client.submit(task)
    ahead = AHEAD_STEPS * config.algorithm.groups_per_step
    published = 0
    while view.ended is None:
        while published < view.groups_admitted + ahead:
            if training_task_id(published) not in view.tasks:
                await client.submit(training_task(run, config, questions, published))
            published += 1
        await asyncio.sleep(LOOK_SECONDS)


CONFIG_FILE = "config.toml"
FAILED_CODE = 1


class Job:
    """``elsewhere``: where the services are when they are not ours; the run goes on without this command then."""

    def __init__(self, run: str, folder: Folder, console: Console, elsewhere: Address | None) -> None:
        self.run, self.folder, self.elsewhere = run, folder, elsewhere
        self._console = console
        self._questions: Questions | None = None
        self._follower: Follower | None = None
        self._furthest = 0
        self._hopeless, self._failure = asyncio.Event(), ""
        self._interrupt: Interrupt | None = None

    def report(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def note(self, name: str, what: str) -> None:
        """What happened to a process."""
        if self._follower is not None:
            self._follower.note(name, what)
        else:
            self.report(f"{name} {what}", "yellow")

    def watch_signals(self) -> None:
        """From now on Ctrl-C leaves in order. Call it in the loop."""
        here = "services hand back what they hold, then the server ends"
        self._interrupt = Interrupt(self.report, here if self.elsewhere is None else "the run goes on where its services are")

    @property
    def interrupted(self) -> bool:
        return self._interrupt is not None and self._interrupt.requested.is_set()

    def check_places(self, store: str | None) -> None:
        """Raise ConfigError or Unavailable unless the run's folder and its store can be written. Makes nothing but a probe."""
        check_folder(self.folder.path)
        known = self.folder.address() if self.elsewhere is None else self.elsewhere
        if url := store or (known.store_url if known is not None else None):
            check_store(url)

    def check(self, config: RunConfig, store: str | None) -> None:
        """Raise ConfigError or Unavailable for what cannot work. With services elsewhere, what only we lack is a note."""
        self._questions = load_questions(config.tasks, config.seed)
        for check in (check_engine, check_agents, partial(prepare_model, console=self._console)):
            try:
                check(config)
            except ConfigError as wrong:
                if self.elsewhere is None:
                    raise
                self.report(f"on this machine, which need not matter: {wrong}", "yellow")
        url = (store or self.folder.store_url) if self.elsewhere is None else self.elsewhere.store_url
        if url is not None:
            check_store(url)

    async def accepted(self, client: Client, wanted: RunConfig | None) -> RunConfig | None:
        """Ask for a new run, or find out what a resumed one is. Raises ConfigError. None: interrupted meanwhile."""
        if wanted is not None:
            if not await client.request_run(self.run, wanted):
                raise ConfigError(f"a run named {self.run!r} exists on this server; use --resume, or another --name")
            return wanted
        config = await client.requested(self.run)
        if config is None:  # left before the request was stored
            config = self._kept_config()
            await client.request_run(self.run, config)
        try:
            await asyncio.to_thread(self.check, config, client.store.url if self.elsewhere is None else None)
        except ConfigError:
            if not self.interrupted:  # Ctrl-C ends the processes that check, too
                raise
        return None if self.interrupted else config

    def _kept_config(self) -> RunConfig:
        path = self.folder.path / CONFIG_FILE
        if not path.is_file():
            raise ConfigError(f"run {self.run!r} cannot be resumed: nobody asked for it on this server")
        return load_run_config(path)

    def keep(self, config: RunConfig, address: Address) -> None:
        """The run's own configuration, overrides included, and where its services are when not here."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        (self.folder.path / CONFIG_FILE).write_text(to_toml(config.model_dump(mode="json", exclude_none=True)))
        if self.elsewhere is not None:
            self.folder.announce(address)

    def progress(self) -> float:
        """How far the run has come, in steps ever taken, tokens sampled and episodes completed: it only grows."""
        if self._follower is None:
            return 0.0
        view = self._follower.view
        self._furthest = max(self._furthest, view.step)  # a trainer that dies at the same step again does not get on
        return self._furthest + view.sampled_tokens + view.statuses[EpisodeStatus.COMPLETED]

    def give_up(self, name: str, why: str) -> None:
        """A service of ours will not get better by itself: suspend the run."""
        self._failure = self._failure or f"{name} {why}"
        self._hopeless.set()

    async def follow(self, client: Client, config: RunConfig) -> int:
        """Feed and follow until the run ended or is held, Ctrl-C, or a service of ours is hopeless; returns the exit code."""
        assert self._questions is not None
        assert self._interrupt is not None
        questions, folder = self._questions, self.folder
        sizes = f"{len(questions.training)} training and {len(questions.held_out)} held-out questions"
        self.report(f"run {self.run} in {folder.path}/ ({sizes})")
        follower = self._follower = Follower(self.run, config, folder, self._console)
        await _until_first(
            follower.run_until_end(client),
            self._interrupt.requested.wait(),
            self._hopeless.wait(),
            beside=self._feed(client, config, questions, follower),
        )
        if follower.view.ended is None:
            write_summary(self.run, config, questions, follower, folder)
            held = "" if follower.view.held is None else f"run {self.run} is held: {follower.view.held.reason}"
            if failure := self._failure or held:
                self.report(failure, "red")
            return FAILED_CODE if failure else EXIT_CODE
        return await finish(client, self.run, config, questions, follower, folder, self._console)

    async def _feed(self, client: Client, config: RunConfig, questions: Questions, follower: Follower) -> None:
        await follower.up_to_date.wait()
        await feed(client, self.run, config, questions, follower.view)

    def left(self) -> None:
        """Say how to go on. Call it when everything here has ended."""
        follower = self._follower
        if follower is not None and follower.view.ended is not None:
            return
        at = "" if follower is None else f" at step {follower.view.step}, of which {follower.view.committed_step} are saved"
        if follower is not None and follower.view.held is not None:
            again = f"{program()} train --resume {self.run}"
            self.report(f"held{at}; nothing of them is lost. When its reason is gone, go on with: {again}", "yellow")
        elif self.elsewhere is not None:
            where = without_password(self.elsewhere.nats_url)
            self.report(f"run {self.run} goes on at {where}; its tasks are published while it is followed.", "yellow")
            again = f"{program()} train --resume {self.run}"
            self.report(f"follow it again: {again}    end it: {program()} stop {self.run}", "yellow")
        else:
            self.report(f"suspended{at}; go on with: {program()} train --resume {self.run}", "yellow")


async def _until_first(*work: Any, beside: Any) -> None:
    """Run until one of ``work`` ends or anything fails, which is raised; ``beside`` may end before."""
    main, other = [asyncio.ensure_future(each) for each in work], asyncio.ensure_future(beside)
    try:
        done, _ = await asyncio.wait([*main, other], return_when=asyncio.FIRST_COMPLETED)
        if done == {other}:
            other.result()
            done, _ = await asyncio.wait(main, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        await end(*main, other)


def to_toml(document: dict[str, Any]) -> str:
    """A run document as TOML. Only the shapes a RunConfig has: scalars, lists, tables, and a list of tables."""
    return tomli_w.dumps(document)


# What a person wants of a run that is resumed: that a held one tries again, or that it goes back to an earlier checkpoint.


async def request_resume(
    client: Client, run: str, config: RunConfig, checkpoint_step: int | None, report: Callable[[str, str], None]
) -> None:
    """Publish it, where there is something to publish.

    Raises ConfigError for a checkpoint that the run cannot go back to; nothing was published then.
    """
    history = await client.commits(run) if run in await client.runs() else CommitHistory()
    if checkpoint_step is not None:
        target = _target(run, history, checkpoint_step, config.checkpoints.keep)
        await client.resume(run, checkpoint_step)
        report(f"run {run} is asked to go back to step {target.step}, checkpoint {target.checkpoint}", "yellow")
    elif history.held is not None and not history.is_over:
        await client.resume(run)
        report(f"run {run} was held, and is asked to try again: {history.held.reason}", "yellow")


def _target(run: str, history: CommitHistory, step: int, keep: int) -> Commit:
    """The newest commit of a step that a rollback may go back to. Raises ConfigError, naming those there are."""
    if history.is_over:
        how = "has ended" if history.ended else "is being ended"
        raise ConfigError(f"--checkpoint {step}: run {run} {how}; it trains no more")
    if (target := history.target_of(step, keep)) is not None:
        return target
    steps = ", ".join(str(each) for each in sorted({commit.step for commit in history.targets(keep)}))
    there = f"its kept checkpoints are of step {steps}" if steps else "it has no checkpoint yet"
    raise ConfigError(f"--checkpoint {step}: run {run} cannot go back to it; {there}. Nothing was changed")
