"""Roles and hand-over, proved as far as chance can: whatever happens, and in whatever order.

always                                                  and when the faults stop
no device has two holders, and nobody uses a device     within a minute every lease that is wanted stands, every process
that is not its own                                     obeys its own, and nothing changes hands any more
no generation is lost: it is queued, held by the one    every generation ends, where anybody may roll out
that may write to it, or ended; no token is stored      every batch is trained, where anybody may train
under an older claim than the one before it
one node has the run's trainer
epochs only grow
"""

from __future__ import annotations

import pytest
from handover_world import RUN, TRAINER, WORKER, Generation, Machine, Process, Trainer, Worker, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from seamlessflow.contracts import Role
from services.scheduler.policy import POLICIES

NODES = ("a", "b", "c", "d")
KINDS = ((WORKER, TRAINER), (WORKER, TRAINER), (WORKER, TRAINER), (WORKER,), (TRAINER,))
SETTLED_ROUNDS = 60
"""Seconds within which all is well again: presence (5), grace (10), a member's time (10), a device that is withheld (10)."""
services = st.sampled_from([WORKER, TRAINER])
places = st.integers(0, 20)
good_seconds = st.sampled_from([0, 0, 0, 1, 2, 6])
"""In which all goes well after a fault, so that the next one finds the fleet busy."""
masks = st.just(-1) | st.integers(0, 255)
"""Which processes: one bit each."""


class Handover(RuleBasedStateMachine):
    policy = "multiplexed"

    @initialize(
        train_nodes=st.sampled_from([3, 2, 1]),
        nodes=st.lists(st.sampled_from(KINDS), min_size=2, max_size=len(NODES)) | st.just([]),
        rounds=st.sampled_from([0, 3]),
    )
    def begin(self, train_nodes: int, nodes: list[tuple[str, ...]], rounds: int) -> None:
        """``rounds``: seconds in which all goes well first."""
        self.world = World(self.policy, train_nodes)
        for name, kinds in zip(NODES, nodes, strict=False):
            for service in kinds:
                self.world.start(self._machine(name), service)
        for _ in range(rounds):
            self.world.round()

    # -- what nodes do -----------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NODES), service=services, then=good_seconds)
    def a_process_starts(self, name: str, service: str, then: int) -> None:
        self.world.start(self._machine(name), service)
        self._go_on(then)

    @rule(name=st.sampled_from(NODES), service=services, then=good_seconds)
    def another_machine_has_its_name(self, name: str, service: str, then: int) -> None:
        if sum(machine.node == name for machine in self.world.machines) == 1:
            self.world.machines.append(Machine(name))
            self.world.start(self.world.machines[-1], service)
        self._go_on(then)

    @rule(place=places, then=good_seconds)
    def a_process_dies(self, place: int, then: int) -> None:
        if process := self._process(place):
            process.die()
        self._go_on(then)

    @rule(place=places, then=good_seconds)
    def a_process_hangs_or_wakes(self, place: int, then: int) -> None:
        if process := self._process(place):
            process.is_hung = not process.is_hung
        self._go_on(then)

    @rule(place=places, age=st.sampled_from([0, 0, 0, 1, 2]))
    def a_lease_is_read(self, place: int, age: int) -> None:
        """Maybe long ago: what was read then is obeyed now."""
        process = self._process(place)
        if process and (stood := self.world.old_leases.get(process.machine.node)):
            process.read(stood[max(0, len(stood) - 1 - age)])

    @rule(place=places, times=st.integers(1, 4))
    def a_process_acts(self, place: int, times: int) -> None:
        if process := self._process(place):
            for _ in range(times):
                process.act()

    @rule(reads=masks, acts=masks, works=masks, hears=st.integers(0, 12), ticks=st.booleans())
    def a_second_passes(self, reads: int, acts: int, works: int, hears: int, ticks: bool) -> None:
        """In which some of it happens."""
        self.world.pass_time(1.0)
        for place, process in enumerate(self.world.processes):
            if reads >> place & 1 and process.machine.node in self.world.leases:
                process.read(self.world.leases[process.machine.node][0])
            for _ in range(8 if acts >> place & 1 else 0):
                process.act()
            if works >> place & 1 and isinstance(process, Worker | Trainer):
                process.work()
        for _ in range(hears):
            self.world.leader.hear()
        if ticks:
            self.world.leader.look()
            self.world.leader.tick()

    @rule(place=places)
    def work_is_done(self, place: int) -> None:
        process = self._process(place)
        if isinstance(process, Worker | Trainer):
            process.work()

    # -- what happens to a run ---------------------------------------------------------------------------------------------

    @rule(then=good_seconds)
    def a_generation_is_asked_for(self, then: int) -> None:
        self.world.generations.append(Generation(f"g{len(self.world.generations)}"))
        self._go_on(then)

    @rule(place=places)
    def the_queue_delivers_again(self, place: int) -> None:
        if self.world.generations:
            self.world.redeliver(self.world.generations[place % len(self.world.generations)])

    @rule(then=good_seconds)
    def a_group_is_finished(self, then: int) -> None:
        self.world.finish_group()
        self._go_on(then)

    @rule(seconds=st.sampled_from([0.3, 1.0, 3.0, 7.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # -- what schedulers do ------------------------------------------------------------------------------------------------

    @rule(place=st.integers(0, 3), again=st.booleans())
    def the_scheduler_hears(self, place: int, again: bool) -> None:
        self.world.leader.hear(place, again=again)

    @rule()
    def the_scheduler_hears_all(self) -> None:
        while self.world.leader.unheard:
            self.world.leader.hear()

    @rule(looks=st.booleans(), most=st.sampled_from([1, 2, 99, 99]))
    def the_scheduler_ticks(self, looks: bool, most: int) -> None:
        if looks:
            self.world.leader.look()
        self.world.leader.tick(most)

    @rule(
        most=st.integers(0, 3),
        dumb=st.booleans(),
        ahead_seconds=st.sampled_from([0.0, 0.0, 3600.0, -3600.0]),
        then=good_seconds,
    )
    def a_scheduler_dies_at_work_and_another_leads(self, most: int, dumb: bool, ahead_seconds: float, then: int) -> None:
        self.world.leader.tick(most, dumb=dumb)
        self.world.replace_leader(ahead_seconds)
        self._go_on(then)

    # -- what is always true -----------------------------------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def a_device_is_used_by_its_only_holder(self) -> None:
        for process in self.world.processes:
            uses = process.pulls and not process.is_frozen if isinstance(process, Worker) else bool(process.in_step)
            assert not (process.is_alive and uses) or process.holds, f"{process.machine.node} {process.service}"
        holders = [machine.holder for machine in self.world.machines if machine.holder is not None]
        assert len(set(holders)) == len(holders) and all(holder.is_alive for holder in holders)

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def no_generation_is_lost(self) -> None:
        for generation in self.world.generations:
            assert generation.is_ended or generation.is_queued or generation.holders, f"{generation.name} is nowhere"
            owners = [
                process
                for process in generation.holders
                if isinstance(process, Worker) and process.held.get(generation) == generation.claim
            ]
            assert len(owners) <= 1
            assert generation.tokens == sorted(generation.tokens), "a token was stored under an older claim"

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def one_node_has_the_trainer(self) -> None:
        leads = [name for name, (lease, _) in self.world.leases.items() if lease.run == RUN and lease.trainer]
        assert len(leads) <= 1
        for name, (lease, _) in self.world.leases.items():
            assert lease.role is not Role.TRAIN or lease.trainer or name in lease.gang

    # -- and at the end ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.correct_doubles()
        for process in world.processes:
            process.is_hung = False
        for _ in range(SETTLED_ROUNDS):
            world.round()
            self.a_device_is_used_by_its_only_holder()
            self.no_generation_is_lost()
            self.one_node_has_the_trainer()
        assert not world.leader.plan().changes, "roles still change hands"
        for process in world.processes:
            if process.is_alive:
                self._obeys(process)
        can_roll_out, can_train = self._able()
        if can_roll_out:
            assert all(generation.is_ended for generation in world.generations)
        if can_train:
            assert set(world.trained) == set(world.groups)

    def _obeys(self, process: Process) -> None:
        lease = self.world.leases[process.machine.node][0]
        is_wanted = lease.role is (Role.ROLLOUT if process.service == WORKER else Role.TRAIN)
        assert process.lease == lease and process.holds is is_wanted, f"{process.machine.node} {process.service}"

    def _able(self) -> tuple[bool, bool]:
        """Whether anybody can roll out and train at the end, as far as the policy lets them."""
        alive = [process for process in self.world.processes if process.is_alive]
        workers = {process.machine.node for process in alive if process.service == WORKER}
        trainers = {process.machine.node for process in alive if process.service == TRAINER}
        if self.policy == "disaggregated":
            split = any(worker != trainer for worker in workers for trainer in trainers)
            return split, split
        return bool(workers), bool(trainers)

    def _go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.round()

    def _machine(self, name: str) -> Machine:
        for machine in self.world.machines:
            if machine.node == name:
                return machine
        self.world.machines.append(Machine(name))
        return self.world.machines[-1]

    def _process(self, place: int) -> Process | None:
        alive = [process for process in self.world.processes if process.is_alive]
        return alive[place % len(alive)] if alive else None


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_devices_change_hands_safely_and_in_the_end_everybody_does_what_is_wanted(policy: str):
    """See the table above."""
    machine = type("Handover", (Handover,), {"policy": policy})
    checks = settings(
        max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    run_state_machine_as_test(machine, settings=checks)
