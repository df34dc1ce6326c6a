"""What stands on the floor of the hand-over's world: machines, their processes with what they announce, and people's orders.

Time passes only when told; presence runs out with it. People drain nodes and take tags away, and undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seamlessflow.contracts import NodeOrder, NodeStatus
from tests.services.scheduler.handover_processes import CAPABILITY, Machine, Process
from tests.services.scheduler.handover_trainer import Trainer

PRESENCE_SECONDS = 5.0


class Floor:
    """Two machines may have one name by mistake; of their processes the last to renew is seen."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.machines: list[Machine] = []
        self.processes: list[Process] = []
        self.orders: dict[str, NodeOrder] = {}
        self.gone: set[tuple[str, str]] = set()
        """Node and service of those that never start again."""

    @property
    def has_doubles(self) -> bool:
        """Whether two machines have one name."""
        return len({machine.node for machine in self.machines}) < len(self.machines)

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

    def order(self, node: str, change: Callable[[NodeOrder], NodeOrder]) -> None:
        """A person types a command."""
        self.orders[node] = change(self.orders.get(node, NodeOrder()))

    def obeys_orders(self, process: Process) -> bool:
        """Whether people let it do what it is made for."""
        order = self.orders.get(process.machine.node, NodeOrder())
        return not order.drain and CAPABILITY[process.service] not in order.remove

    def trainers(self) -> Iterator[Trainer]:
        for process in self.processes:
            if isinstance(process, Trainer) and process.is_alive:
                yield process

    def correct_doubles(self) -> None:
        """A person gives a name to one machine only."""
        for machine in list(self.machines):
            if any(other.node == machine.node for other in self.machines[: self.machines.index(machine)]):
                for process in [each for each in self.processes if each.machine is machine]:
                    process.die()
