"""A world in which devices change hands: real pure protocol, small models of processes, and no clock but its own.

    scheduler   Fleet, Pulse, next_plan, next_lease, Progress, Measures as they are; leases are compare-and-set
    worker      ``rollout_worker.roles.moves``, ``decide`` and ``Chain`` as they are, one move at a time; a generation is a
                subject of the journal with its fence
    trainer     what trainer/device_turn and trainer/service do with a lease, one thing at a time
    device      a lock for each machine, which goes with its holder
    people      drain nodes and take tags away, and undo it

Anything may happen between two moves: processes die, hang and start again, leases are read late or not at all, news come to
the scheduler late, twice and out of order, schedulers are replaced, and their clocks are an hour off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scheduler_world import RUN, Journal, config, origin, task

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeStatus,
    Event,
    GenerationFinish,
    GenerationRequested,
    GroupAdmitted,
    Int32s,
    Lease,
    NodeOrder,
    NodeStatus,
    Role,
    RoleReleased,
    RoleTaken,
    Sampling,
    StepTaken,
    TrainerStarted,
)
from seamlessflow.errors import SequenceMismatch
from services.rollout_worker.chain import Chain
from services.rollout_worker.inflight import Continue, EndNow, History, Stretch, decide
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
NUM_TOKENS = 9
"""Of a generation: more than a worker samples in a second."""


@dataclass(eq=False)
class Generation:
    """A unit of work: its subject in the journal, and who was delivered it and did not give it back."""

    name: str
    said: list[Event] = field(default_factory=list)
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
        """What somebody knows who heard no more of it."""
        return self._histories[seq]

    def append(self, event: Event, expected_last_seq: int | None) -> int:
        """As the server does: whoever expects nothing is not refused. Raises BadInput where tokens are missing or come
        twice."""
        if expected_last_seq not in (None, len(self.said)):
            raise SequenceMismatch(self.name)
        self.said.append(event)
        self._histories.append(self.history.after(event, len(self.said)))
        return len(self.said)


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
        self.is_alive, self.is_hung, self.is_slow = True, False, False
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
        self.held: dict[Generation, Chain] = {}

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
        for generation in list(self.held):
            self.drop(generation)
            generation.is_queued = not generation.is_ended

    def drop(self, generation: Generation) -> None:
        del self.held[generation]
        generation.holders.discard(self)

    def work(self) -> None:
        """Take something from the queue, or say the next thing about it: a claim, a token, the end."""
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
        """A first delivery is taken for a fresh generation without reading what was said of it."""
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


class Trainer(Process):
    service = TRAINER

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        self.is_new, self.is_lent, self.may_step = True, False, False
        self.gang: tuple[str, ...] = ()
        self.line = self.step = self.num_nodes = 0
        """Line 0: it is not in the run."""
        self.batch: str | None = None
        self.in_step = 0
        """Nodes of the step in progress."""
        self.partners: list[Process] = []
        """Who held a device for the step when it began."""
        self.has_hung = False
        """In the step in progress: then it is no wonder that nobody waits for it."""

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
                self.gang, self.num_nodes = self.lease.gang, max(1, len(self.lease.gang))
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
        lease, _ = self.world.leases[self.machine.node]
        if self.line < self.world.newest_line and lease.trainer:  # another has its name; its supervisor starts it again
            self.die()
            self.world.start(self.machine, TRAINER)
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
            assert self.lease is not None
            self.in_step, self.has_hung = self.num_nodes, False
            self.partners = [each for each in self.world.trainers() if each.holds and each.machine.node in self.gang]


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
        quiet = self.pulse.observe(revisions, self.world.time)
        self.fleet.observe([s for s, _ in there], self.now, quiet, dict(self.world.orders))

    def take_in(self, event: Event, at: float) -> None:
        self.progress.apply(event, at)
        self.measures.apply(event, at)

    def hear(self, place: int = 0, *, again: bool = False) -> None:
        """One of the news that wait, not always the oldest, and maybe not for the last time."""
        if self.unheard:
            place %= len(self.unheard)
            self.world.is_in_order &= place == 0
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
        self.orders: dict[str, NodeOrder] = {}
        self.gone: set[tuple[str, str]] = set()
        """Node and service of those that never start again."""
        self.generations: list[Generation] = []
        self.num_claims = 0
        self.is_in_order = True
        """Whether this scheduler heard everything in order."""
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
        self._check_order(node, lease)
        before.append(lease)
        self.leases[node] = lease, revision + 1
        return True

    def _check_order(self, node: str, lease: Lease) -> None:
        """Release before grant, lease by lease: its writer may die behind any of them."""
        if not lease.trainer:
            return
        others = [name for name, (other, _) in self.leases.items() if name != node and other.run == RUN and other.trainer]
        assert not others, f"{node} is told to have the run's trainer while {', '.join(others)} has it"
        former = self.leases[node][0].gang if node in self.leases else ()
        for name in set(lease.gang[1:]) - set(former):
            assert self.leases[name][0].role is Role.TRAIN, f"{node} leads {name}, which was not told"
            if not self.leader.unheard and self.is_in_order and not self.has_doubles:
                assert self._has_device(name), f"{node} leads {name}, which does not say that it has its device"

    @property
    def has_doubles(self) -> bool:
        """Whether two machines have one name."""
        return len({machine.node for machine in self.machines}) < len(self.machines)

    def _has_device(self, node: str) -> bool:
        """Whether the journal says that a trainer has the device of its node."""
        said = [each for each in self.journal.of(RoleTaken, RoleReleased) if (each.node, each.service) == (node, TRAINER)]
        return max(said, key=lambda each: (each.epoch, isinstance(each, RoleReleased)), default=None).__class__ is RoleTaken

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
        is_gone = (machine.node, service) in self.gone
        if not is_gone and not any(
            each.machine is machine and each.service == service and each.is_alive for each in self.processes
        ):
            self.processes.append((Worker if service == WORKER else Trainer)(self, machine))

    def order(self, node: str, change: Callable[[NodeOrder], NodeOrder]) -> None:
        """Somebody types a command."""
        self.orders[node] = change(self.orders.get(node, NodeOrder()))

    def obeys_orders(self, process: Process) -> bool:
        """Whether people let it do what it is made for."""
        order = self.orders.get(process.machine.node, NodeOrder())
        return not order.drain and CAPABILITY[process.service] not in order.remove

    def trainers(self) -> Iterator[Trainer]:
        for process in self.processes:
            if isinstance(process, Trainer) and process.is_alive:
                yield process

    def replace_leader(self, ahead_seconds: float) -> None:
        self.leader = Leader(self, ahead_seconds)
        self.is_in_order = True  # it reads the journal

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
        """Somebody gives a name to one machine only."""
        for machine in list(self.machines):
            if any(other.node == machine.node for other in self.machines[: self.machines.index(machine)]):
                for process in [each for each in self.processes if each.machine is machine]:
                    process.die()

    def round(self, trainer_works: int = 1) -> None:
        """A second in which everything works: all leases are read, all is done and heard, and the scheduler looks.

        trainer_works: things that a trainer does; with 0 no step ends, with 1 one lasts for a second, and batches pile up.
        """
        self.pass_time(1.0)
        for process in self.processes:
            if process.machine.node in self.leases:
                process.read(self.leases[process.machine.node][0])
            for _ in range(1 if process.is_slow else 20):
                process.act()
        for generation in self.generations:
            self.redeliver(generation)
        for process in self.processes:
            if isinstance(process, Worker | Trainer):
                for _ in range(trainer_works if isinstance(process, Trainer) else 6):
                    process.work()
        while self.leader.unheard:
            self.leader.hear()
        self.leader.load()
        self.leader.look()
        self.leader.tick()
