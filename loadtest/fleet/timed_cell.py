"""One cell of the grid: which fleet plays which workload under which policy, and everything that follows from that. Pure.

Three scales make a fleet small enough for two cores and leave its physics as it is: seconds (``time_scale``), tokens
(``token_scale``), and sequences: one episode of the timed run stands for ``episode_scale`` equal ones that a device works on
together, so a device has that many times fewer slots and each sequence costs that many times more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from . import constants
from .cost import Cost, cost_of
from .timed_clock import Scale
from .timed_policies import timed_policy
from .workloads import AGENTIC, REASONING, Workload, most_agents, shifting, with_ratio

ENV = "work"


@dataclass(frozen=True, slots=True)
class Cell:
    """``policy``: as ``fleet.policy``. ``ratio``: training over rollout work."""

    mode: str
    policy: str
    nodes: int = 8
    train_nodes: int = 1
    max_staleness: int = constants.MAX_STALENESS
    ratio: float = 1 / 2.5
    agentic: bool = False
    shifts: bool = False
    steps: int = 12
    groups_per_node: int = constants.GROUPS_PER_NODE
    episode_scale: int = constants.EPISODE_SCALE
    time_scale: float = constants.TIME_SCALE
    token_scale: int = constants.TOKEN_SCALE
    buckets: int = 1
    shards: int = 1
    seed: int = 0

    @property
    def run(self) -> str:
        """Name of the run."""
        kind = ("agentic" if self.agentic else "single") + ("-shift" if self.shifts else "")
        return f"{self.mode}-{self.nodes}-{round(1 / self.ratio, 1)}-{kind}".replace(".", "-")[:48].strip("-")

    @property
    def workload(self) -> Workload:
        base = AGENTIC if self.agentic else REASONING
        agents = None if base.agents_per_node is None else base.agents_per_node / self.episode_scale
        return replace(shifting(base) if self.shifts else base, seed=self.seed, agents_per_node=agents)

    @property
    def agents(self) -> int:
        """Episodes of the timed run that are played side by side: as many as in the simulator."""
        fixed = {"colocated": self.nodes, "disaggregated": max(1, self.nodes - self.train_nodes)}
        most = most_agents(self.workload, self.cost, self.nodes, fixed.get(self.policy))
        return constants.IN_PLAY * self.nodes * self.cost.slots if most is None else most

    @property
    def tick_seconds(self) -> float:
        """Real seconds between two looks of the scheduler."""
        return max(constants.LEAST_TICK_SECONDS, self.scale.real_seconds(constants.TICK_SECONDS))

    @property
    def groups_per_step(self) -> int:
        """Of the timed run, each of which stands for ``episode_scale``."""
        return max(1, self.nodes * self.groups_per_node // self.episode_scale)

    @property
    def num_tasks(self) -> int:
        """Enough for every step and for what is rolled out ahead of them."""
        return (self.steps + self.max_staleness + 2) * self.groups_per_step

    @property
    def cost(self) -> Cost:
        """Of a device, for the sequences of the timed run."""
        fine = with_ratio(cost_of(), self.workload, self.ratio, self.groups_per_step * self.episode_scale)
        return coarse(fine, self.episode_scale)

    @property
    def scale(self) -> Scale:
        return Scale(self.time_scale, self.token_scale)

    @property
    def modelled_tokens_per_token(self) -> int:
        """What a sampled token of the journal stands for, all in all."""
        return self.token_scale * self.episode_scale

    def progress(self, number: int) -> float:
        """How far the run is with its ``number``-th task (from 0), from 0 to 1."""
        return min(1.0, number / (self.steps * self.groups_per_step))

    def document(self, model: str) -> dict[str, Any]:
        """The run document. ``model``: folder of a tiny model, for its tokenizer and template."""
        workload, scale = self.workload, self.scale
        return {
            "name": self.run,
            "seed": self.seed,
            "model": {"name": model, "dtype": "float32", "max_context_tokens": scale.data_tokens(self.cost.kv_tokens)},
            "agents": [{"env": ENV, "external": True, "reward": "reported"}],
            "sampling": {"max_tokens": scale.data_tokens(workload.answers.longest) + constants.OVERHEAD_TOKENS},
            "algorithm": {
                "steps": self.steps,
                "groups_per_step": self.groups_per_step,
                "group_size": workload.group_size,
                "max_staleness": self.max_staleness,
                "drop_zero_variance": False,
                "max_sequence_tokens": 1 << 24,
            },
            "fleet": {
                "policy": timed_policy(self.policy, self.time_scale),
                "train_nodes": self.train_nodes,
                "slots": self.cost.slots,
                "agents": 1 << 16,
                "shards": self.shards,
                "buckets": self.buckets,
            },
            "checkpoints": {"every_steps": 2, "keep": 2},
            "evaluation": {"before": False, "after": False},
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        return cls(**{each.name: document[each.name] for each in fields(cls)})


def coarse(cost: Cost, episodes: int) -> Cost:
    """The same device where one sequence stands for ``episodes`` equal ones."""
    return replace(
        cost,
        decode_per_sequence=cost.decode_per_sequence * episodes,
        decode_per_context=cost.decode_per_context * episodes,
        prefill_per_token=cost.prefill_per_token * episodes,
        train_per_token=cost.train_per_token * episodes,
        kv_tokens=cost.kv_tokens // episodes,
        slots=max(1, cost.slots // episodes),
    )
