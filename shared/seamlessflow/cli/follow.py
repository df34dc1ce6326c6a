"""Following a run: journal to screen, ``metrics.jsonl`` and TensorBoard, all from one fold."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..client import Client
from ..contracts import EvaluationEnded, Event, RunEnded, RunPhase, StepTaken
from ..errors import ConfigError
from ..ledger import LedgerFold
from ..run_config import RunConfig
from ..run_view import RunView
from .place import Folder

SPARKS = "▁▂▃▄▅▆▇█"


class Follower:
    """Reads the journal from its beginning, so that a resumed run shows its whole past."""

    def __init__(self, run: str, config: RunConfig, folder: Folder, console: Console) -> None:
        self.view = RunView()
        self.seen_start = asyncio.Event()
        self.ledger = LedgerFold()
        self._run, self._config, self._folder, self._console = run, config, folder, console
        self._notes: deque[str] = deque(maxlen=4)
        self._began = time.monotonic()

    def note(self, name: str, what: str) -> None:
        """Something worth saying that is not in the journal."""
        self._notes.append(f"{name} {what}")
        if not self._console.is_terminal:
            self._console.print(f"{name} {what}")

    async def run_until_end(self, client: Client) -> None:
        """Until RunEnded was seen."""
        from tensorboard.summary import Writer

        writer = Writer(str(self._folder.path / "tensorboard"))
        await self._wait_for_journal(client)
        with (self._folder.path / "metrics.jsonl").open("w") as lines, Live(
            console=self._console, get_renderable=self._screen, refresh_per_second=4, transient=True,
            auto_refresh=self._console.is_terminal,
        ):  # fmt: skip
            async for record, event in client.events(self._run, follow=True):
                self.view.apply(event, record.time)
                self.ledger.add(event)
                self.seen_start.set()
                if isinstance(event, StepTaken):
                    lines.write(json.dumps({"time": record.time, "step": event.step, **event.metrics}) + "\n")
                    lines.flush()
                    for name, value in event.metrics.items():
                        writer.add_scalar(name, value, event.step)
                self._print_milestone(event)
                if isinstance(event, RunEnded):
                    break
        writer.close()

    async def _wait_for_journal(self, client: Client) -> None:
        waited = 0
        while self._run not in await client.runs():
            state = await client.run_state(self._run)
            if state is not None and state.phase is RunPhase.REFUSED:
                raise ConfigError(f"run {self._run} was refused: {state.reason}")
            waited += 1
            if waited % 50 == 0:
                self.note("waiting", "for a scheduler to start the run")
            await asyncio.sleep(0.2)

    def _print_milestone(self, event: Event) -> None:
        """What scrolls by: one line a step and one an evaluation."""
        if isinstance(event, EvaluationEnded):
            scores = ", ".join(f"{env} {score:.3f}" for env, score in event.mean_reward.items())
            self._console.print(f"[bold]evaluation {event.round}[/]: {scores} ({event.num_episodes} held-out episodes, greedy)")
        elif isinstance(event, StepTaken):
            m = event.metrics
            rewards = " ".join(f"{k.removeprefix('reward/')} {v:.2f}" for k, v in sorted(m.items()) if k.startswith("reward/"))
            self._console.print(
                f"step {event.step:>3}/{self._config.algorithm.steps}  reward {m.get('reward', 0):.3f} ({rewards})  "
                f"age {m.get('staleness_mean', 0):.1f}  {m.get('trained_tokens', 0):.0f} tokens  "
                f"{self.view.tokens_per_second():.0f} tok/s  train {m.get('seconds_train', 0):.1f} s  {self._elapsed()}",
                highlight=False,
            )

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    def _screen(self) -> Group:
        view = self.view
        rewards = [row.metrics.get("reward", 0.0) for row in view.steps][-60:]
        curve = "".join(SPARKS[min(int(max(r, 0) * 8), 7)] for r in rewards)
        head = Table.grid(padding=(0, 2))
        head.add_row("step", f"{view.step}/{self._config.algorithm.steps}", "reward", curve or "-", "elapsed", self._elapsed())
        head.add_row(
            "episodes", f"{view.running_episodes} running",
            "tokens", f"{view.sampled_tokens:,} ({view.tokens_per_second():.0f}/s)",
            "pauses", f"{len(view.pauses)} ({1000 * sum(s for _, s in view.pauses):.0f} ms)",
        )  # fmt: skip
        ages = ", ".join(f"{age}: {n:,}" for age, n in sorted(view.staleness.items()))
        roles = ", ".join(f"{node}: {role.value}" for node, (role, _) in sorted(view.roles.items()) if role.value != "serve")
        evaluation = " ".join(f"{r} {view.evaluation_done[r]}/{n}" for r, n in view.evaluation_opened.items())
        head.add_row("staleness", ages or "-", "roles", roles or "-", "evaluation", evaluation or "-")
        return Group(head, *(Text(note, style="yellow") for note in self._notes))
