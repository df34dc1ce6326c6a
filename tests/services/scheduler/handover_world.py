"""A world in which devices change hands: real pure protocol, small models of processes, and no clock but its own.

    scheduler   FleetState, HeartbeatMonitor, next_plan, RunProgress, RunMeasurements as they are; leases are compare-and-set
    worker      ``rollout_worker.roles.moves``, ``decide`` and ``Chain`` as they are, one move at a time; a generation is a
                subject of the journal with its fence
    trainer     what trainer/device_turn and trainer/service do with a lease, one thing at a time
    device      a lock for each machine, which goes with its holder
    people      drain nodes and take tags away, and undo it

They stand in ``handover_leader``, ``_worker``, ``_trainer``, ``_processes`` and ``_floor``, and what must be true of a lease in
``handover_grants``; here they meet.

Anything may happen between two moves: processes die, hang and start again, leases are read late or not at all, news come to
the scheduler late, twice and out of order, schedulers are replaced, and their clocks are an hour off.
"""

from __future__ import annotations

from seamlessflow.contracts import EpisodeEnded, EpisodeStatus, Event, GroupAdmitted, Lease, TrainerStarted
from tests.services.scheduler.handover_floor import Floor
from tests.services.scheduler.handover_grants import check_grant
from tests.services.scheduler.handover_leader import Leader
from tests.services.scheduler.handover_processes import WORKER, Machine
from tests.services.scheduler.handover_trainer import Trainer
from tests.services.scheduler.handover_worker import Generation, Worker
from tests.services.scheduler.scheduler_world import RUN, Journal, config, origin, task


class World(Floor):
    """Everything there is."""

    def __init__(self, policy: str, train_nodes: int) -> None:
        super().__init__()
        algorithm = {"groups_per_step": 1, "group_size": 2, "steps": 1000, "max_staleness": 2}
        self.config = config(algorithm=algorithm, fleet={"policy": policy, "train_nodes": train_nodes, "buckets": 4})
        self.journal = Journal()
        self.history: list[tuple[Event, float]] = []
        self.leases: dict[str, tuple[Lease, int]] = {}
        self.old_leases: dict[str, list[Lease]] = {}
        self.generations: list[Generation] = []
        self.num_claims = 0
        self.is_in_order = True
        """Whether this scheduler heard everything in order."""
        self.groups: list[str] = []
        self.trained: tuple[str, ...] = ()
        """Groups of steps along the newest line, each of which is durable at once."""
        self.step = 0
        self.leader = Leader(self, 0.0)

    def publish(self, event: Event) -> bool:
        if not self.journal.publish(event):
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
        check_grant(self, node, lease)
        before.append(lease)
        self.leases[node] = lease, revision + 1
        return True

    def start(self, machine: Machine, service: str) -> None:
        is_gone = (machine.node, service) in self.gone
        if not is_gone and not any(
            each.machine is machine and each.service == service and each.is_alive for each in self.processes
        ):
            self.processes.append((Worker if service == WORKER else Trainer)(self, machine))

    def replace_leader(self, ahead_seconds: float) -> None:
        self.leader = Leader(self, ahead_seconds)
        self.is_in_order = True  # it reads the journal

    def finish_group(self) -> None:
        """A group is asked for, admitted, and its members complete: a batch."""
        name = f"t{len(self.groups)}"
        self.publish(task(name))
        self.publish(
            GroupAdmitted(run=RUN, group=f"g-{name}", task=name, env="single", num_episodes=2, evaluation=None, step=0)
        )
        for index in range(2):
            self.publish(
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
        """Its delivery timed out: the queue brings it again."""
        if not generation.is_ended and not any(each.acts for each in generation.holders):
            generation.is_queued = True

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
