"""Short runs of the tiny demo, and what their journals say of them.

A journal has one order, so "during" is a matter of position: what stands between a trainer's ``RoleTaken`` and its
``StepTaken`` was stored while the trainer had the device for that step.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from seamlessflow.cli.run_location import reach
from seamlessflow.contracts import (
    Event,
    GenerationClaimed,
    Role,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    RunEnded,
    SegmentSampled,
    Service,
    StepTaken,
)
from seamlessflow.reports.ledger import Ledger

from .conftest import ROOT

STEPS = 3
HELD_OUT = 5
E = TypeVar("E", bound=Event)


def short_run(folder: Path, **sections: dict[str, Any]) -> Path:
    """A run file: the tiny demo with few and small steps, and what each of ``sections`` is to say instead."""
    document = tomllib.loads((ROOT / "deploy" / "demo" / "tiny.toml").read_text())
    small: dict[str, dict[str, Any]] = {
        "algorithm": {"steps": STEPS, "groups_per_step": 4, "group_size": 4},
        "tasks": {"max_held_out": HELD_OUT},
        "fleet": {"slots": 16, "agents": 16},
    }
    for changes in (small, sections):
        for section, values in changes.items():
            document[section] = {**document.get(section, {}), **values}
    path = folder / "short.toml"
    path.write_text(tomli_w.dumps(document))
    return path


@dataclass(frozen=True)
class Journal:
    """Everything that was said in a run, in the order in which it was stored."""

    events: Sequence[Event]

    @classmethod
    async def of(cls, run: str) -> Journal:
        """That of a run whose folder is in the working directory."""
        async with reach(run, None, None) as client:
            return cls([event async for _, event in client.events(run)])

    def all(self, kind: type[E]) -> list[E]:
        """Every event of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ledger(self) -> Ledger:
        """Where every episode and every token went."""
        return Ledger.of(self.events)

    @property
    def logprob_gaps(self) -> list[float]:
        """Nats, of the steps in which tokens of the newest weights were trained."""
        return [step.metrics["logprob_gap"] for step in self.all(StepTaken) if "logprob_gap" in step.metrics]

    @property
    def num_samplers(self) -> int:
        """How many processes sampled."""
        return len({claim.worker for claim in self.all(GenerationClaimed)})

    def holders(self, service: Service) -> set[str]:
        """Nodes on which this service held the device at any time."""
        return {taken.node for taken in self.all(RoleTaken) if taken.service == service.value}

    def roles(self, node: str) -> list[Role]:
        """What a node was told to do until the run ended, in order; repeats are left out."""
        told = [event.role for event in self._until_the_end() if isinstance(event, RoleAssigned) and event.node == node]
        return told[:1] + [after for before, after in pairwise(told) if after is not before]

    def roles_at_steps(self, node: str) -> list[Role]:
        """Of each step: what the node had been told to do when the step was done."""
        role, found = Role.IDLE, []
        for event in self.events:
            if isinstance(event, RoleAssigned) and event.node == node:
                role = event.role
            elif isinstance(event, StepTaken):
                found.append(role)
        return found

    def _until_the_end(self) -> Iterator[Event]:
        return takewhile(lambda event: not isinstance(event, RunEnded), self.events)

    def tokens_during_steps(self) -> list[int]:
        """Of each step: how many tokens anybody's engine added to the journal while the trainer had the device for it."""
        counts: list[int] = []
        tokens, has_device = 0, False
        for event in self.events:
            match event:
                case RoleTaken(service=Service.TRAINER.value):
                    tokens, has_device = 0, True
                case RoleReleased(service=Service.TRAINER.value):
                    has_device = False
                case SegmentSampled():
                    tokens += len(event.token_ids)
                case StepTaken():
                    assert has_device, f"step {event.step} was taken by a trainer that never said it held the device"
                    counts.append(tokens)
                    tokens = 0
        return counts
