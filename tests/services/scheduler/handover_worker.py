"""Workers of the hand-over's world, and generations: subjects of the journal, each with its fence.

``rollout_worker.roles.moves``, ``decide`` and ``Chain`` are used as they are, one move at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seamlessflow.contracts import (
    Event,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    Lease,
    RoleReleased,
    RoleTaken,
    Sampling,
)
from seamlessflow.errors import SequenceMismatch
from seamlessflow_rollout_worker.generations.generation_state import Continue, EndNow, History, Stretch, decide
from seamlessflow_rollout_worker.generations.segment_writer import Chain
from seamlessflow_rollout_worker.service import Move, Standing, moves
from tests.services.scheduler.handover_processes import WORKER, Machine, Process
from tests.services.scheduler.scheduler_world import RUN

if TYPE_CHECKING:
    from tests.services.scheduler.handover_world import World

NUM_TOKENS = 9
"""Of a generation: more than a worker samples in a second."""


@dataclass(eq=False)
class Generation:
    """A unit of work: its subject in the journal, and who was delivered it and did not give it back."""

    name: str
    published: list[Event] = field(default_factory=list)
    is_queued: bool = True
    holders: set[Process] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.request = GenerationRequested(
            run=RUN, episode="e-0-0", generation=self.name, tag="rollout", bucket=0, shard=0, suffix=Int32s([7]),
            sampling=Sampling(max_tokens=NUM_TOKENS), stop_token_ids=(), seed=1,
        )  # fmt: skip
        self._histories = [History()]

    @property
    def history(self) -> History:
        return self._histories[-1]

    @property
    def is_ended(self) -> bool:
        return self.history.ended

    def history_until(self, seq: int) -> History:
        """The history of a generation as known from its events so far."""
        return self._histories[seq]

    def append(self, event: Event, expected_last_seq: int | None) -> int:
        """As the server does: whoever expects nothing is not refused. Raises BadInput where tokens are missing or come
        twice."""
        if expected_last_seq not in (None, len(self.published)):
            raise SequenceMismatch(self.name)
        self.published.append(event)
        self._histories.append(self.history.after(event, len(self.published)))
        return len(self.published)


class Worker(Process):
    service = WORKER

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        self.run: str | None = None
        self.pulls = self.is_frozen = False
        self.held: dict[Generation, Chain] = {}

    def plan(self, lease: Lease) -> list[str]:
        self.obeyed = lease.epoch
        published = {Move.TAKE: [Move.TAKE, "publish taken"], Move.RELEASE: [Move.RELEASE, "publish released"]}
        planned = moves(Standing(self.run, self.holds, bool(self.held)), lease)
        return [each for move in planned for each in published.get(move, [move])]

    def do(self, what: str) -> bool:
        assert self.lease is not None
        match what:
            case Move.JOIN:
                self.run = self.lease.run
            case Move.STOP:
                self.pulls = False
            case Move.FREEZE:
                self.is_frozen = True
            case Move.HAND_BACK:
                self.hand_back()
            case Move.RELEASE:
                self.release()
            case Move.LEAVE:
                self.run = None
            case Move.TAKE:
                if not self.take():
                    return False
                self.is_frozen = False
            case Move.PULL:
                self.pulls = True
            case "publish taken":
                self.publish_role(RoleTaken)
            case "publish released":
                self.publish_role(RoleReleased)
        return True

    def hand_back(self) -> None:
        for generation in list(self.held):
            self.drop(generation)
            generation.is_queued = not generation.is_ended

    def drop(self, generation: Generation) -> None:
        del self.held[generation]
        generation.holders.discard(self)

    def work(self) -> None:
        """Take something from the queue, or publish its next event: a claim, a token, the end."""
        if not (self.acts and self.pulls and not self.is_frozen):
            return
        assert self.holds, "a worker samples on a device that is not its own"
        queued = [each for each in self.world.generations if each.is_queued and each not in self.held]
        if queued and len(self.held) < 2:
            self.pull(queued[0])
        elif self.held:
            generation = next(iter(self.held))
            try:
                self.go_on(generation, self.held[generation])
            except SequenceMismatch:  # it was presumed dead, or its picture was old
                self.drop(generation)

    def pull(self, generation: Generation) -> None:
        """A first delivery is taken for a fresh generation without reading its events."""
        generation.is_queued = False
        if generation.is_ended:
            return
        self.world.num_claims += 1
        nonce = f"n{self.world.num_claims}"
        chain = Chain(generation.request, generation.history, worker=self.machine.node, nonce=nonce)
        generation.holders.add(self)
        self.held[generation] = chain
        if self.world.num_claims % 2:  # else its first segment is the claim
            chain.stored(generation.append(chain.claim(), chain.last_seq))

    def go_on(self, generation: Generation, chain: Chain) -> None:
        """With what it knows; the engine samples the token behind its own last one."""
        known = generation.history_until(chain.last_seq)
        decision = decide(generation.request, known, prompt_tokens=1, max_context_tokens=99)
        if isinstance(decision, Continue):
            num_known = len(known.token_ids)
            stretch = Stretch(num_known, 0, 0.0, [num_known], [-1.0])
            end = GenerationFinish.LENGTH if decision.max_tokens == 1 else None
            chain.stored(generation.append(chain.segment(stretch, end), chain.last_seq))
            if end is None:
                return
        elif isinstance(decision, EndNow):
            generation.append(chain.end(decision.finish, len(known.token_ids)), chain.last_seq)
        self.drop(generation)
