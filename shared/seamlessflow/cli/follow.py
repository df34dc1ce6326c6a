"""Following a run: journal to screen, ``metrics.jsonl`` and TensorBoard, all from one fold."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live

from seamlessflow.client import Client
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    DeadLetter,
    EpisodeEnded,
    EpisodeStatus,
    EvaluationEnded,
    Event,
    GenerationRequested,
    RolledBack,
    RunPhase,
    RunState,
    StepTaken,
)
from seamlessflow.errors import ConfigError, SeamlessFlowError
from seamlessflow.reports.ledger import LedgerFold
from seamlessflow.reports.run_view import RunView
from seamlessflow.timeline import TimelineFold

from .console import run_screen
from .metrics_files import MetricsFiles
from .run_location import Folder
from .shutdown import end

# What goes wrong in a run, as lines that do not flood: a few at once, then one now and then that counts the others. Pure.


AT_ONCE = 3
EVERY_SECONDS = 15.0
LINE_CHARACTERS = 400


def complaint(event: Event) -> str | None:
    """One line for an event that a person should see, or None. A reason of many lines: its first and its last."""
    if isinstance(event, DeadLetter):
        return f"dead letter: {event.service} cannot handle {event.subject}: {brief(event.reason)}"
    if isinstance(event, EpisodeEnded) and event.status not in (EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED):
        return f"failed: episode {event.episode} ({event.origin.env}): {event.status.value}: {brief(event.reason)}"
    return None


def brief(reason: str) -> str:
    """A reason in one line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason was given"]
    line = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " ..."


@dataclass
class Complaints:
    """Lets ``AT_ONCE`` lines through in ``EVERY_SECONDS``; the next one that passes says how many did not. Seconds as given."""

    _since: float = float("-inf")
    _passed: int = 0
    _withheld: int = 0

    def line(self, event: Event, time: float) -> str | None:
        """What to print for an event at this time, or None."""
        said = complaint(event)
        if said is None:
            return None
        if time - self._since >= EVERY_SECONDS:
            self._since, self._passed = time, 0
        if self._passed >= AT_ONCE:
            self._withheld += 1
            return None
        self._passed += 1
        return said + self._others()

    def rest(self) -> str | None:
        """At the end: the count of what was never said, or None."""
        return f"failed: {self._withheld} more, not shown" if self._withheld else None

    def _others(self) -> str:
        others, self._withheld = self._withheld, 0
        return f" ({others} more since the last one shown)" if others else ""


UNUSED = (CallRequested, CallAnswered, GenerationRequested)
"""Half of a journal, and neither screen nor ledger has a use for it."""
LOOK_SECONDS = 0.2
STATE_SECONDS = 2.0
"""How often the scheduler's word on the run is read."""
NO_SCHEDULER_SECONDS = 10.0


class Follower:
    """Reads the journal from its beginning, so that a resumed run shows its whole past."""

    def __init__(self, run: str, config: RunConfig, folder: Folder, console: Console) -> None:
        self.view = RunView()
        self.ledger = LedgerFold()
        self.lanes = TimelineFold()
        self.up_to_date = asyncio.Event()
        """The run has started, and everything its journal held when we came has been seen."""
        self._run, self._config, self._folder, self._console = run, config, folder, console
        self._complaints = Complaints()
        self._notes: deque[str] = deque(maxlen=4)
        self._waits = ""
        self._began = time.monotonic()
        self._shows_table = False

    def note(self, name: str, what: str) -> None:
        """Something worth saying that is not in the journal: below the table while there is one, else a line."""
        self._notes.append(f"{name} {what}")
        if not self._shows_table:
            self._print(f"{name} {what}", style="yellow")

    async def run_until_end(self, client: Client) -> None:
        """Until the run ended, or is held (``view.held``) with no word of a person after that in the journal.

        Raises ConfigError when the run was refused.
        """
        metrics = MetricsFiles(self._folder.path)
        watching = asyncio.create_task(self._watch_state(client))
        try:
            with self._table():
                await self._wait_for_journal(client)
                seen = await self._read(client, metrics, follow=False, start_seq=1)
                if self.view.started is not None:
                    self.up_to_date.set()
                while self.view.ended is None and self.view.held is None:
                    seen = await self._read(client, metrics, follow=True, start_seq=seen + 1)
                    if self.view.held is not None:  # unless that was answered meanwhile
                        seen = await self._read(client, metrics, follow=False, start_seq=seen + 1)
                if rest := self._complaints.rest():
                    self._print(rest, style="red")
        finally:
            await end(watching)
            metrics.close()

    async def _read(self, client: Client, metrics: MetricsFiles, *, follow: bool, start_seq: int) -> int:
        """Take events in, to the journal's present end or (``follow``) to the run's end or hold; returns the last sequence."""
        seen = start_seq - 1
        async for record, event in client.events(self._run, follow=follow, start_seq=start_seq, without=UNUSED):
            seen = record.seq
            counts = self.view.apply(event, record.time)
            self.ledger.add(event)
            self.lanes.apply(event, record.time)
            if counts and isinstance(event, StepTaken):
                metrics.add(event, record.time)
            if counts:
                self._print_milestone(event, record.time)
            if follow and self.view.started is not None:
                self.up_to_date.set()
            if self.view.ended is not None or (follow and self.view.held is not None):
                break
        return seen

    async def _wait_for_journal(self, client: Client) -> None:
        began, said = time.monotonic(), False
        while self._run not in await client.runs():
            state = await client.run_state(self._run)
            if state is not None and state.phase is RunPhase.REFUSED:
                raise ConfigError(f"run {self._run} was refused: {state.reason}")
            if state is None and not said and time.monotonic() - began > NO_SCHEDULER_SECONDS:
                said = True
                self.note("waiting", "for a scheduler to start the run: none has taken it up")
            await asyncio.sleep(LOOK_SECONDS)

    async def _watch_state(self, client: Client) -> None:
        """What the scheduler says the run waits for, once it has said the same twice in a row."""
        before: RunState | None = None
        while True:
            await asyncio.sleep(STATE_SECONDS)
            try:
                state = await client.run_state(self._run)
            except SeamlessFlowError:
                continue  # the server is away; whoever reads the journal says so
            goes_on = state is not None and state.phase in (RunPhase.QUEUED, RunPhase.RUNNING)
            if state is not None and goes_on and state == before and state.reason != self._waits:
                self._waits = state.reason
                if state.reason:
                    self.note(f"{state.phase.value}, waits:", state.reason)
            before = state

    def _print_milestone(self, event: Event, at: float) -> None:
        """What scrolls by: one line a step and one an evaluation, and what goes wrong."""
        if isinstance(event, EvaluationEnded):
            scores = ", ".join(f"{env} {score:.3f}" for env, score in event.mean_reward.items())
            failed = f", {event.num_failed} failed" if event.num_failed else ""
            self._print(
                f"evaluation {event.round}: {scores} ({event.num_episodes} held-out episodes, greedy{failed})", style="bold"
            )
        elif isinstance(event, StepTaken):
            self._print(self._step_line(event))
            if warning := self.view.gap_warning:
                self._print(warning, style="red")
        elif isinstance(event, RolledBack):
            self._print(f"went back to the checkpoint of step {event.step}: what was trained after it counts no more", "yellow")
        elif line := self._complaints.line(event, at):
            self._print(line, style="red")

    def _step_line(self, event: StepTaken) -> str:
        m = event.metrics
        rewards = " ".join(f"{k.removeprefix('reward/')} {v:.2f}" for k, v in sorted(m.items()) if k.startswith("reward/"))
        return (
            f"step {event.step:>3}/{self._config.algorithm.steps}  reward {m.get('reward', 0):.3f} ({rewards})  "
            f"age {m.get('staleness_mean', 0):.1f}  {m.get('trained_tokens', 0):.0f} tokens  "
            f"{self.view.tokens_per_second():.0f} tok/s  train {m.get('seconds_train', 0):.1f} s  {self._elapsed()}"
        )

    def _print(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    @contextmanager
    def _table(self) -> Iterator[None]:
        """A live table, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        self._shows_table = True
        try:
            with Live(console=self._console, get_renderable=self._screen, refresh_per_second=2, transient=True):
                yield
        finally:
            self._shows_table = False

    def _screen(self) -> Group:
        notes = [*self._notes] if not self._waits else [*self._notes, f"waits: {self._waits}"]
        steps, columns = self._config.algorithm.steps, self._console.width
        return run_screen(self.view, steps=steps, elapsed=self._elapsed(), notes=notes, columns=columns)
