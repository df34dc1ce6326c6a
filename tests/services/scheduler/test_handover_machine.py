"""Roles and hand-over, proved as far as chance can: whatever happens, and in whatever order.

always                                                  and when the faults stop
no device has two holders, and no one uses a device     within a minute every lease that is wanted stands, every process
that is not its own                                     obeys its own, and nothing changes hands any more
no generation is lost: it is queued, held by the one    every generation ends, where any node may roll out
that may write to it, or ended; no token is stored      every batch is trained, where any node may train
under an older claim than the one before it
one node has the run's trainer
epochs only grow
who holds a device for a step holds it to its end
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from seamlessflow.contracts import Role, claim_of
from seamlessflow_scheduler.policy import POLICIES
from tests.services.scheduler.handover_processes import TRAINER, WORKER, Machine, Process
from tests.services.scheduler.handover_trainer import Trainer
from tests.services.scheduler.handover_worker import NUM_TOKENS, Generation, Worker
from tests.services.scheduler.handover_world import World
from tests.services.scheduler.scheduler_world import RUN

NODES = ("a", "b", "c", "d")
BOTH, ROLLS_OUT, TRAINS = (WORKER, TRAINER), (WORKER,), (TRAINER,)
FLEETS = (
    (BOTH, BOTH, BOTH),
    (BOTH, BOTH, BOTH, BOTH),
    (BOTH, BOTH, ROLLS_OUT),
    (BOTH, BOTH, TRAINS),
    (TRAINS, BOTH, BOTH, ROLLS_OUT),
    (BOTH, BOTH),
    (TRAINS, ROLLS_OUT),
    (),
)
SETTLED_ROUNDS = 60
"""Seconds within which all is well again: presence (5), grace (10), a member's time (10), a device that is withheld (10)."""
STEP_SECONDS = 25
"""Within which a step begins, where one can."""
services = st.sampled_from([WORKER, TRAINER])
places = st.integers(0, 20)
good_seconds = st.sampled_from([0, 0, 0, 1, 2, 6])
names = st.sampled_from(NODES)
away_seconds = st.sampled_from([3, 8, 20])
"""In which all goes well after a fault, so that the next one finds the fleet busy."""
masks = st.just(-1) | st.integers(0, 255)
"""Which processes: one bit each."""


class Handover(RuleBasedStateMachine):
    policy = "multiplexed"

    @initialize(
        generations=st.integers(0, 4),
        train_nodes=st.sampled_from([3, 3, 2, 1]),
        nodes=st.sampled_from(FLEETS),
        rounds=st.sampled_from([0, 3]),
    )
    def begin(self, generations: int, train_nodes: int, nodes: tuple[tuple[str, ...], ...], rounds: int) -> None:
        """``rounds``: seconds in which all goes well first."""
        self.world = World(self.policy, train_nodes)
        for name, kinds in zip(NODES, nodes, strict=False):
            for service in kinds:
                self.world.start(self._machine(name), service)
        self.world.generations = [Generation(f"g{number}") for number in range(generations)]
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
            self._hang(process, not process.is_hung)
        self._go_on(then)

    @rule(place=places, seconds=away_seconds, then=good_seconds)
    def a_worker_hangs_until_it_is_taken_for_dead(self, place: int, seconds: int, then: int) -> None:
        """In the middle of a generation that others finish meanwhile; then it goes on where it stood."""
        self.world.generations.append(Generation(f"g{len(self.world.generations)}"))
        workers = [each for each in self.world.processes if isinstance(each, Worker) and each.acts]
        for worker in workers:
            worker.work()
        if holding := [each for each in workers if each.held]:
            worker = holding[place % len(holding)]
            worker.is_hung = True
            self._go_on(seconds)
            worker.is_hung = False
            worker.work()
        self._go_on(then)

    @rule(
        place=places,
        what=st.sampled_from(["drain", "untag", "die", "hang", "gone"]),
        seconds=st.integers(1, 4),
        then=good_seconds,
    )
    def something_happens_in_the_middle_of_a_step(self, place: int, what: str, seconds: int, then: int) -> None:
        """To one of those that hold their devices for it. ``seconds``: the step goes on for."""
        if steps := self._steps():
            lead = steps[place % len(steps)]
            members = [each for each in lead.partners if each is not lead]
            process = [*members, lead][place % (len(members) + 1)]
            match what:
                case "drain":
                    self.world.order(process.machine.node, lambda order: order.model_copy(update={"drain": True}))
                case "untag":
                    self.world.order(process.machine.node, lambda order: order.model_copy(update={"remove": ("train",)}))
                case "hang":
                    self._hang(process, True)
                case _:
                    self.world.gone |= {(process.machine.node, TRAINER)} if what == "gone" else set()
                    process.die()
            for _ in range(seconds):
                self.world.round(trainer_works=0)
                self.who_holds_a_device_for_a_step_holds_it_to_its_end()
                self.one_node_has_the_trainer()
        self._go_on(then)

    def _steps(self) -> list[Trainer]:
        """Trainers in the middle of a step; one is brought about where all goes well for a while."""
        self.world.replace_leader(0.0)
        for second in range(STEP_SECONDS):
            steps = [each for each in self.world.trainers() if each.in_step]
            if steps:
                return sorted(steps, key=lambda each: -len(each.partners))
            if second == 0:
                self.world.finish_group()
            self.world.round()
        return []

    @rule(place=places, service=services, then=good_seconds | away_seconds)
    def a_process_is_gone_for_good(self, place: int, service: str, then: int) -> None:
        """And the other one of its node stays."""
        alive = [each for each in self.world.processes if each.is_alive and each.service == service]
        if alive:
            gone = alive[place % len(alive)]
            self.world.gone.add((gone.machine.node, service))
            gone.die()
        self._go_on(then)

    # -- what people order -------------------------------------------------------------------------------------------------

    @rule(name=names, tag=st.sampled_from(["train", "train", "rollout"]), then=good_seconds)
    def a_tag_is_taken_away_or_given_back(self, name: str, tag: str, then: int) -> None:
        self.world.order(name, lambda order: order.model_copy(update={"remove": tuple({*order.remove} ^ {tag})}))
        self._go_on(then)

    @rule(name=names, then=good_seconds)
    def a_node_is_drained_or_no_longer(self, name: str, then: int) -> None:
        self.world.order(name, lambda order: order.model_copy(update={"drain": not order.drain}))
        self._go_on(then)

    @rule(place=places, then=good_seconds)
    def a_process_gets_slow_or_fast(self, place: int, then: int) -> None:
        """One thing a second."""
        if process := self._process(place):
            process.is_slow = not process.is_slow
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
            token_ids = list(generation.history.token_ids)
            assert token_ids == list(range(len(token_ids))) and len(token_ids) <= NUM_TOKENS
            claimed_by = None
            for event in generation.published:
                claimed_by = event.nonce if claim_of(event) is not None else claimed_by
                assert event.nonce == claimed_by, f"{generation.name}: published under a claim that another one followed"

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def who_holds_a_device_for_a_step_holds_it_to_its_end(self) -> None:
        """Drained or not. Not where news came in another order, nor for a trainer that was taken for dead."""
        for lead in self.world.trainers():
            is_sure = self.world.is_in_order and not (self.world.has_doubles or lead.has_hung)
            if lead.in_step and lead.line == self.world.newest_line and is_sure:
                let_go = [each.machine.node for each in lead.partners if each.is_alive and not each.holds]
                assert not let_go, f"{', '.join(let_go)} let go in the middle of a step of {lead.machine.node}"

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
            self._hang(process, False)
            process.is_slow = False
        for _ in range(SETTLED_ROUNDS):
            world.round(trainer_works=6)
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
        if process.machine.node not in self.world.leases:  # drained before it ever had one
            assert not process.holds
            return
        lease = self.world.leases[process.machine.node][0]
        has_waiters = lease.role is (Role.ROLLOUT if process.service == WORKER else Role.TRAIN)
        assert process.lease == lease and process.holds is has_waiters, f"{process.machine.node} {process.service}"

    def _able(self) -> tuple[bool, bool]:
        """Whether some nodes can roll out and train at the end, as far as the policy lets them."""
        alive = [each for each in self.world.processes if each.is_alive and self.world.obeys_orders(each)]
        workers = {process.machine.node for process in alive if process.service == WORKER}
        trainers = {process.machine.node for process in alive if process.service == TRAINER}
        if self.policy == "disaggregated":
            split = any(worker != trainer for worker in workers for trainer in trainers)
            return split, split
        return bool(workers), bool(trainers)

    def _go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.round()

    def _hang(self, process: Process, is_hung: bool) -> None:
        process.is_hung = is_hung
        if isinstance(process, Trainer):
            process.has_hung = True

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
        max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    run_state_machine_as_test(machine, settings=checks)
