"""A world in which devices change hands: real pure protocol, small models of processes, and no clock but its own.

    scheduler   Fleet, Pulse, next_plan, next_lease, Progress, Measures as they are; leases are compare-and-set
    worker      ``rollout_worker.roles.moves`` as it is, one move at a time; generations with the fence of their claims
    trainer     what trainer/device_turn and trainer/service do with a lease, one thing at a time
    device      a lock for each machine, which goes with its holder

Anything may happen between two moves: processes die, hang and start again, leases are read late or not at all, news come to
the scheduler late, twice and out of order, schedulers are replaced, and their clocks are an hour off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_world import RUN, Journal, config, origin, task

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeStatus,
    Event,
    GroupAdmitted,
    Lease,
    NodeStatus,
    Role,
    RoleReleased,
    RoleTaken,
    StepTaken,
    TrainerStarted,
)
from services.rollout_worker.roles import Move, Standing, moves
from services.scheduler.demand import demand_of
from services.scheduler.fleet import Fleet, HeldLease
from services.scheduler.lease_book import next_lease, role_assigned
from services.scheduler.measures import Measures
from services.scheduler.plan import Plan, next_plan
from services.scheduler.policy import Node
from services.scheduler.progress import Progress, holding
from services.scheduler.pulse import Pulse

WORKER, TRAINER = "rollout-worker", "trainer"
CAPABILITY = {WORKER: "rollout", TRAINER: "train"}
PRESENCE_SECONDS = 5.0


@dataclass(eq=False)
class Generation:
    """A unit of work. ``claim``: who may write to it. ``holders``: were delivered it, and did not give it back."""

    name: str
    claim: int = 0
    tokens: list[int] = field(default_factory=list)
    """The claims under which they were stored."""
    is_queued: bool = True
    is_ended: bool = False
    holders: set[Process] = field(default_factory=set)


@dataclass(eq=False)
class Machine:
    """One device. Two machines may have one name by mistake."""

    node: str
    holder: Process | None = None


class Process:
    """What a worker and a trainer have in common: a lease that was read, and things to do one after the other."""

    service = ""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.is_alive, self.is_hung = True, False
        self.lease: Lease | None = None
        self.is_news = False
        self.todo: deque[str] = deque()
        self.renewed_at, self.revision = world.time, 0

    @property
    def holds(self) -> bool:
        return self.machine.holder is self

    @property
    def acts(self) -> bool:
        return self.is_alive and not self.is_hung

    def read(self, lease: Lease) -> None:
        """A lease was read, maybe late: an older one than the newest known is not obeyed."""
        if self.acts and (self.lease is None or lease.epoch > self.lease.epoch):
            self.lease, self.is_news = lease, True

    def act(self) -> bool:
        """Do the next thing. False: there is none, or it has to wait."""
        if not self.acts:
            return False
        if self.is_news and (not self.todo or self.todo[0] == Move.TAKE):
            assert self.lease is not None
            self.is_news = False
            self.todo = deque(self.plan(self.lease))
        if not self.todo or not self.do(self.todo[0]):
            return False
        self.todo.popleft()
        return True

    def plan(self, lease: Lease) -> list[str]:
        raise NotImplementedError

    def do(self, what: str) -> bool:
        raise NotImplementedError

    def take(self) -> bool:
        if self.machine.holder is None:
            self.machine.holder = self
        return self.holds

    def release(self) -> None:
        if self.holds:
            self.machine.holder = None

    def die(self) -> None:
        self.is_alive = False
        self.release()

    def say_role(self, kind: type[RoleTaken] | type[RoleReleased]) -> None:
        assert self.lease is not None
        epoch = self.obeyed
        self.world.say(kind(run=RUN, node=self.machine.node, epoch=epoch, service=self.service))

    obeyed = 0
    """Epoch of the lease whose plan is being carried out."""


class Worker(Process):
    service = WORKER

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        self.run: str | None = None
        self.pulls = self.is_frozen = False
        self.held: dict[Generation, int] = {}
        """To the claim under which it is sampled."""

    def plan(self, lease: Lease) -> list[str]:
        self.obeyed = lease.epoch
        said = {Move.TAKE: [Move.TAKE, "say taken"], Move.RELEASE: [Move.RELEASE, "say released"]}
        planned = moves(Standing(self.run, self.holds, bool(self.held)), lease)
        return [each for move in planned for each in said.get(move, [move])]

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
            case "say taken":
                self.say_role(RoleTaken)
            case "say released":
                self.say_role(RoleReleased)
        return True

    def hand_back(self) -> None:
        for generation, claim in self.held.items():
            generation.holders.discard(self)
            if claim == generation.claim and not generation.is_ended:
                generation.is_queued = True
        self.held.clear()

    def work(self) -> None:
        """Claim something, or sample a token of it, or end it."""
        if not (self.acts and self.pulls and not self.is_frozen):
            return
        assert self.holds, "a worker samples on a device that is not its own"
        queued = [each for each in self.world.generations if each.is_queued]
        if queued and len(self.held) < 2:
            generation = queued[0]
            generation.is_queued = False
            generation.claim += 1
            generation.holders.add(self)
            self.held[generation] = generation.claim
        elif self.held:
            generation, claim = next(iter(self.held.items()))
            if claim != generation.claim or generation.is_ended:  # the fence: it was presumed dead
                del self.held[generation]
                generation.holders.discard(self)
            elif len(generation.tokens) < 2:
                generation.tokens.append(claim)
            else:
                generation.is_ended = True
                del self.held[generation]
                generation.holders.discard(self)


class Trainer(Process):
    service = TRAINER

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        self.is_new, self.is_lent, self.may_step = True, False, False
        self.line = self.step = self.num_nodes = 0
        """Line 0: it is not in the run."""
        self.batch: str | None = None
        self.in_step = 0
        """Nodes of the step in progress."""

    def plan(self, lease: Lease) -> list[str]:
        self.obeyed = lease.epoch
        leaves = ["leave"] if self.line and not (lease.run and lease.trainer) else []
        joins = ["join"] if lease.run and lease.trainer and (not self.line or leaves) else []
        is_new, self.is_new = self.is_new, False
        if lease.run is None:
            turn = ["release", "say released"] if self.is_lent else ["release"]
        elif lease.role is Role.TRAIN:
            return [*leaves, *joins, Move.TAKE, "say taken"]
        else:
            turn = ["release", "say released"] if lease.trainer or self.is_lent or is_new else []
        return [*leaves, *turn, *joins]

    def do(self, what: str) -> bool:
        match what:
            case "leave":
                self.in_step, self.line, self.batch, self.may_step = 0, 0, None, False
                self.release()
            case "join":
                self.line = self.world.newest_line + 1
                self.step, self.batch = self.world.step, None
                self.world.say(TrainerStarted(run=RUN, line=self.line, step=self.step, weights_version=self.line))
            case Move.TAKE:
                assert self.lease is not None
                self.num_nodes = max(1, len(self.lease.gang))
                if not self.take():
                    return False
                self.is_lent = self.may_step = True
            case "say taken":
                self.say_role(RoleTaken)
            case "release":
                self.may_step = False
                if self.in_step:
                    return False
                self.release()
            case "say released":
                self.say_role(RoleReleased)
                self.is_lent = False
        return True

    def work(self) -> None:
        """Say a batch ready, begin a step, or end one."""
        if not (self.acts and self.line):
            return
        common = {"run": RUN, "step": self.step + 1, "line": self.line}
        if self.in_step:
            assert self.holds, "a step is taken on a device that is not the trainer's"
            self.in_step, self.step = 0, self.step + 1
            assert self.batch is not None
            said = StepTaken(**common, weights_version=self.step, groups=(self.batch,), metrics={})
            self.batch = None
            if self.world.say(said) and self.line == self.world.newest_line:
                self.world.step = self.step
                self.world.trained += said.groups
        elif self.batch is None:
            ready = [group for group in self.world.groups if group not in self.world.trained]
            if ready:
                self.batch = ready[0]
                self.world.say(BatchReady(**common, num_groups=1, num_tokens=1))
        elif self.may_step and self.holds:
            self.in_step = self.num_nodes


class Leader:
    """A scheduler that leads. ``ahead_seconds``: how wrong its clock is."""

    def __init__(self, world: World, ahead_seconds: float) -> None:
        self.world, self.ahead_seconds = world, ahead_seconds
        self.fleet, self.pulse = Fleet(10.0), Pulse(2.5)
        self.progress, self.measures = Progress(RUN, world.config), Measures(RUN, world.config)
        for event, at in world.history:
            self.take_in(event, at)
        self.unheard: list[tuple[Event, float]] = []
        self.book: dict[str, HeldLease] = {}
        self.load()
        self.look()
        self.fleet.remember({name: held.lease for name, held in self.book.items()}, self.now)
        for name, held in self.book.items():
            if held.lease.run == RUN:
                world.say(role_assigned(RUN, name, held.lease))

    @property
    def now(self) -> float:
        return self.world.time + self.ahead_seconds

    def load(self) -> None:
        known, self.book = self.book, {}
        for name, (lease, revision) in self.world.leases.items():
            before = known.get(name)
            since = before.since if before is not None and before.revision == revision else self.now
            self.book[name] = HeldLease(lease, revision, since)

    def look(self) -> None:
        there = list(self.world.presence())
        revisions = {(s.node, s.service): revision for s, revision in there}
        self.fleet.observe([s for s, _ in there], self.now, self.pulse.observe(revisions, self.world.time))

    def take_in(self, event: Event, at: float) -> None:
        self.progress.apply(event, at)
        self.measures.apply(event, at)

    def hear(self, place: int = 0, *, again: bool = False) -> None:
        """One of the news that wait, not always the oldest, and maybe not for the last time."""
        if self.unheard:
            place %= len(self.unheard)
            event, at = self.unheard[place]
            if not again:
                del self.unheard[place]
            self.take_in(event, at)

    def nodes(self) -> list[Node]:
        return self.fleet.nodes(self.book, holding([self.progress]))

    def plan(self) -> Plan:
        return next_plan(self.nodes(), self.book, [demand_of(self.world.config, self.progress, self.measures)], self.now)

    def tick(self, most: int = 99, *, dumb: bool = False) -> int:
        """Write what should change, at most so many leases. dumb: it dies between the lease and the word."""
        changes = self.plan().changes[:most]
        for done, assignment in enumerate(changes):
            held = self.book.get(assignment.node)
            lease = next_lease(assignment, held, self.now)
            if not self.world.write(assignment.node, lease, held.revision if held is not None else 0):
                self.load()
                return done
            self.book[assignment.node] = HeldLease(lease, self.world.leases[assignment.node][1], self.now)
            if not dumb:
                self.world.say(role_assigned(RUN, assignment.node, lease))
        return len(changes)


class World:
    """Everything there is."""

    def __init__(self, policy: str, train_nodes: int) -> None:
        algorithm = {"groups_per_step": 1, "group_size": 2, "steps": 1000, "max_staleness": 2}
        self.config = config(algorithm=algorithm, fleet={"policy": policy, "train_nodes": train_nodes, "buckets": 4})
        self.time = 1_000_000.0
        self.journal = Journal()
        self.history: list[tuple[Event, float]] = []
        self.leases: dict[str, tuple[Lease, int]] = {}
        self.old_leases: dict[str, list[Lease]] = {}
        self.machines: list[Machine] = []
        self.processes: list[Process] = []
        self.generations: list[Generation] = []
        self.groups: list[str] = []
        self.trained: tuple[str, ...] = ()
        """Groups of steps along the newest line, each of which is durable at once."""
        self.step = 0
        self.leader = Leader(self, 0.0)

    def say(self, event: Event) -> bool:
        if not self.journal.say(event):
            return False
        self.history.append((event, self.time))
        self.leader.unheard.append((event, self.time))
        return True

    def write(self, node: str, lease: Lease, revision: int) -> bool:
        """Compare and set."""
        _, stands = self.leases.get(node, (None, 0))
        if stands != revision:
            return False
        before = self.old_leases.setdefault(node, [])
        assert not before or before[-1].epoch < lease.epoch, "an epoch did not grow"
        before.append(lease)
        self.leases[node] = lease, revision + 1
        return True

    def presence(self) -> Iterator[tuple[NodeStatus, int]]:
        """What the NODES bucket holds: of two processes with one name the last to renew."""
        newest: dict[tuple[str, str], Process] = {}
        for process in self.processes:
            if self.time - process.renewed_at <= PRESENCE_SECONDS:
                key = (process.machine.node, process.service)
                if key not in newest or newest[key].renewed_at <= process.renewed_at:
                    newest[key] = process
        for (node, service), process in newest.items():
            status = NodeStatus(node=node, service=service, instance="i", capabilities=(CAPABILITY[service],), pid=1)
            yield status, process.revision

    def pass_time(self, seconds: float) -> None:
        while seconds > 0:
            self.time += min(1.0, seconds)
            seconds -= 1.0
            for process in self.processes:
                if process.acts:
                    process.renewed_at, process.revision = self.time, process.revision + 1

    def start(self, machine: Machine, service: str) -> None:
        if not any(each.machine is machine and each.service == service and each.is_alive for each in self.processes):
            self.processes.append((Worker if service == WORKER else Trainer)(self, machine))

    def replace_leader(self, ahead_seconds: float) -> None:
        self.leader = Leader(self, ahead_seconds)

    def finish_group(self) -> None:
        """A group is asked for, admitted, and its members complete: a batch."""
        name = f"t{len(self.groups)}"
        self.say(task(name))
        self.say(GroupAdmitted(run=RUN, group=f"g-{name}", task=name, env="single", num_episodes=2, evaluation=None, step=0))
        for index in range(2):
            self.say(
                EpisodeEnded(
                    run=RUN,
                    episode=f"g-{name}-{index}-0",
                    shard=0,
                    origin=origin(f"g-{name}", index),
                    status=EpisodeStatus.COMPLETED,
                    reward=1.0,
                )
            )
        self.groups.append(f"g-{name}")

    @property
    def newest_line(self) -> int:
        return max((event.line for event in self.journal.of(TrainerStarted)), default=0)

    def redeliver(self, generation: Generation) -> None:
        """Nobody pinged for it: the queue brings it again."""
        if not generation.is_ended and not any(each.acts for each in generation.holders):
            generation.is_queued = True

    def correct_doubles(self) -> None:
        """Somebody gives a name to one machine only; a trainer whose line another one superseded starts again."""
        for machine in list(self.machines):
            if any(other.node == machine.node for other in self.machines[: self.machines.index(machine)]):
                for process in [each for each in self.processes if each.machine is machine]:
                    process.die()
        for process in [each for each in self.processes if isinstance(each, Trainer) and each.is_alive]:
            if 0 < process.line < self.newest_line:
                process.die()
                self.start(process.machine, TRAINER)

    def round(self) -> None:
        """A second in which everything works: all leases are read, all is done and heard, and the scheduler looks."""
        self.pass_time(1.0)
        for process in self.processes:
            if process.machine.node in self.leases:
                process.read(self.leases[process.machine.node][0])
            for _ in range(20):
                process.act()
        for generation in self.generations:
            self.redeliver(generation)
        for process in self.processes:
            if isinstance(process, Worker | Trainer):
                for _ in range(4):
                    process.work()
        while self.leader.unheard:
            self.leader.hear()
        self.leader.load()
        self.leader.look()
        self.leader.tick()
