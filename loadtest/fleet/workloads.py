"""What there is to do: tasks, the turns of their episodes, how long tools take. Pure; drawn from the episode's name alone.

So every mode, the simulator and the timed run play the very same episodes, whatever order things happen in.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from . import constants
from .cost import Cost, with_train_work


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation: tokens that are new to the context, tokens sampled, and how long the agent's tool works after it."""

    new: int
    sampled: int
    tool_seconds: float = 0.0
    """0 after the last turn."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal distribution of whole numbers from 1 to ``longest``."""

    median: float
    sigma: float
    longest: int

    def draw(self, normal: float, factor: float = 1.0) -> int:
        """``normal``: standard normal; ``factor`` stretches the median."""
        return max(1, min(self.longest, round(self.median * factor * math.exp(self.sigma * normal))))


@dataclass(frozen=True)
class Workload:
    """``turns``: of agents, with tools in between; None: one. ``growth``: how many times longer answers are in the end."""

    name: str
    answers: Lengths
    """Sampled in one turn."""
    first_prompt: int
    turns: Lengths | None = None
    """None: one."""
    observations: Lengths | None = None
    group_size: int = constants.GROUP_SIZE
    agents_per_node: float | None = None
    """Most episodes side by side for each node that rolls out; None: no limit but the staleness bound."""
    growth: float = 1.0
    common: float = constants.GROUP_VARIANCE
    """Share of the logarithm's variance that answers to one question have in common."""
    questions: int | None = None
    """How many different ones there are, asked again and again. None: every task is another."""
    seed: int = 0

    def episode(self, task: str, index: int, progress: float = 0.0) -> tuple[Turn, ...]:
        """What the ``index``-th doing of a task takes. progress: 0 to 1, how far the run is (answers grow with it)."""
        factor = 1.0 + (self.growth - 1.0) * progress
        common = _normal(f"{self.seed}/{self.question(task)}")
        chance = random.Random(zlib.crc32(f"{self.seed}/{task}/{index}".encode()))
        hard = math.sqrt(self.common) * common + math.sqrt(1 - self.common) * chance.gauss()
        if self.turns is None or self.observations is None:
            return (Turn(self.first_prompt, self.answers.draw(hard, factor)),)
        last = self.turns.draw(hard) - 1
        turns = []
        for number in range(last + 1):
            new = self.observations.draw(chance.gauss()) if number else self.first_prompt
            seconds = constants.TOOL_MEDIAN_SECONDS * math.exp(constants.TOOL_SIGMA * chance.gauss())
            tool = min(constants.TOOL_LONGEST_SECONDS, seconds) if number < last else 0.0
            turns.append(Turn(new, self.answers.draw(chance.gauss(), factor), tool))
        return tuple(turns)

    def question(self, task: str) -> str:
        """What a task asks. Those that ask the same take about as long."""
        number = task.removeprefix("t")
        return f"t{int(number) % self.questions}" if self.questions is not None and number.isdigit() else task

    def sample(self, progress: float, groups: int = 250) -> Iterator[tuple[Turn, ...]]:
        """Episodes of some tasks that no run uses."""
        return (self.episode(f"sample-{task}", index, progress) for task in range(groups) for index in range(self.group_size))


@lru_cache(maxsize=10_000)
def _normal(name: str) -> float:
    return random.Random(zlib.crc32(name.encode())).gauss()


REASONING = Workload(
    "reasoning",
    Lengths(constants.RESPONSE_MEDIAN, constants.RESPONSE_SIGMA, constants.RESPONSE_LONGEST),
    constants.PROMPT_TOKENS,
)
"""Single turn."""

AGENTIC = Workload(
    "agentic",
    Lengths(constants.TURN_MEDIAN, constants.TURN_SIGMA, constants.TURN_LONGEST),
    constants.AGENT_PROMPT_TOKENS,
    Lengths(constants.TURNS_MEDIAN, constants.TURNS_SIGMA, constants.TURNS_MOST),
    Lengths(constants.OBSERVATION_MEDIAN, constants.OBSERVATION_SIGMA, constants.OBSERVATION_LONGEST),
    agents_per_node=constants.AGENTS_PER_NODE,
)

WORKLOADS = {each.name: each for each in (REASONING, AGENTIC)}


def shifting(workload: Workload, growth: float = constants.GROWTH) -> Workload:
    """The same, where answers begin ``growth`` times shorter and reach its lengths at the end of the run."""
    shorter = replace(workload.answers, median=workload.answers.median / growth)
    return replace(workload, name=f"{workload.name}-shifting", answers=shorter, growth=growth)


@dataclass(frozen=True)
class Work:
    """What one episode takes on average."""

    cost: Cost
    sampled: float
    """Tokens."""
    total: float
    """Tokens, prompts included: what training goes through."""
    prefilled: float
    """Tokens, when each turn finds the context of the last in the cache."""
    read: float
    """Tokens whose keys and values are read, summed over all decode steps."""
    held: float
    """Tokens that a sequence of the batch reserves, on average over time."""
    tool_seconds: float
    """In which its tools work."""
    kept: float
    """Tokens of its context meanwhile, on average over that time."""

    @cached_property
    def batch(self) -> float:
        """Sequences side by side when there is always another one: slots, or what the cache has room for.

        The cache also keeps the contexts of episodes whose tool works: so many as Little's law says.
        """
        low, high = 1.0, float(self.cost.slots)
        if self._room(high) <= self.cost.kv_tokens:
            return high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._room(middle) <= self.cost.kv_tokens else (low, middle)
        return low

    def _room(self, batch: float) -> float:
        """Tokens of the cache that so many in the batch need, with their siblings whose tools work."""
        context = self.read / self.sampled
        step = self.cost.decode_fixed + batch * (self.cost.decode_per_sequence + self.cost.decode_per_context * context)
        return batch * (self.held + self.kept * self.tool_seconds / (self.sampled * step))

    @property
    def rollout_seconds(self) -> float:
        """Of one node for one episode, at a full batch: the floor."""
        steps = self.sampled / self.batch
        decode = steps * self.cost.decode_fixed + self.sampled * self.cost.decode_per_sequence
        return decode + self.read * self.cost.decode_per_context + self.cost.prefill_seconds(1) * self.prefilled

    def decode_seconds(self, context: int, tokens: int) -> float:
        """Of one node to sample so many tokens after a context, at a full batch: the floor."""
        each = self.cost.decode_fixed / self.batch + self.cost.decode_per_sequence
        return tokens * (each + self.cost.decode_per_context * (context + (tokens - 1) / 2))

    @property
    def train_seconds(self) -> float:
        """Of one node for one episode, fixed parts of a step left out."""
        return self.total * self.cost.train_per_token


def work_of(workload: Workload, cost: Cost, progress: float = 0.0) -> Work:
    """Averages over a sample of its episodes."""
    return Work(cost, **_averages(workload, progress))


@lru_cache(maxsize=256)
def _averages(workload: Workload, progress: float) -> dict[str, float]:
    """What ``Work`` has of a workload, whatever it costs: drawing the sample takes a third of a second."""
    count = sampled = total = prefilled = read = weighted = tools = kept = 0.0
    for turns in workload.sample(progress):
        context = 0
        count += 1
        for turn in turns:
            context += turn.new
            prefilled += turn.new
            read += turn.sampled * context + turn.sampled * (turn.sampled - 1) / 2
            weighted += turn.sampled * (context + turn.sampled // 2)
            context += turn.sampled
            sampled += turn.sampled
            tools += turn.tool_seconds
            kept += turn.tool_seconds * context
        total += context
    return {
        "sampled": sampled / count,
        "total": total / count,
        "prefilled": prefilled / count,
        "read": read / count,
        "held": weighted / sampled,
        "tool_seconds": tools / count,
        "kept": kept / tools if tools else 0.0,
    }


def most_agents(workload: Workload, cost: Cost, nodes: int, rolling: float | None = None) -> int | None:
    """Most episodes side by side in a fleet; None: no limit but the staleness bound.

    rolling: nodes that roll out. None: as many as the share of rollout in all work makes.
    """
    if workload.agents_per_node is None:
        return None
    work = work_of(workload, cost)
    share = work.rollout_seconds / (work.rollout_seconds + work.train_seconds)
    return max(1, round(workload.agents_per_node * (nodes * share if rolling is None else rolling)))


def floor_seconds(work: Work, turns: Sequence[Turn]) -> float:
    """The least that a node takes to roll out these turns: at a full batch, every context found in the cache."""
    seconds, context = 0.0, 0
    for turn in turns:
        context += turn.new
        seconds += work.cost.prefill_seconds(turn.new) + work.decode_seconds(context, turn.sampled)
        context += turn.sampled
    return seconds


def with_ratio(cost: Cost, workload: Workload, ratio: float, groups_per_step: int, progress: float = 0.0) -> Cost:
    """The cost of nodes on which training this workload takes ``ratio`` times the node-seconds of rolling it out."""
    work = work_of(workload, cost, progress)
    episodes = groups_per_step * workload.group_size
    return with_train_work(
        cost, rollout_seconds=episodes * work.rollout_seconds, tokens=round(episodes * work.total), ratio=ratio
    )
