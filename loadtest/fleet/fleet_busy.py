"""How busy a large simulated fleet is: auto, single turns, the node that is least busy, what hand-overs take, what is lost."""

from __future__ import annotations

import time

from loadtest.report import Figure

from .baselines import modes
from .cost import cost_of
from .simulator import Scene, simulate
from .simulator_account import Outcome
from .workloads import REASONING, with_ratio

RATIO = 1 / 2.5
"""Training over rollout work."""
STEPS = 10
GROUPS_PER_NODE = 8
"""Of a step: 128 episodes for each node, as Skywork-OR1 (see ``constants.GROUPS_PER_NODE``), so a million in one run of 1,000
nodes."""
BUSY_GOAL, HANDOVER_GOAL = 0.97, 0.01


def scene_of(nodes: int, groups_per_node: int, steps: int, warmup_steps: int) -> Scene:
    """What is simulated."""
    groups = nodes * groups_per_node
    cost = with_ratio(cost_of(), REASONING, RATIO, groups)
    return Scene(nodes, REASONING, cost, modes(nodes, 1)["auto"], groups, steps, warmup_steps)


def busy_figures(name: int, scene: Scene, smaller: Scene) -> dict[str, Figure]:
    """Simulate both; all figures are of the first one. name: the number of nodes that keys are told by."""
    outcome, beside = _simulated(scene), _simulated(smaller)
    least, mean = outcome.least_busy_share, outcome.busy_share
    words = f"{smaller.nodes} nodes"
    lost = f"at {words}"
    return {
        f"busy_share_{name}_nodes": Figure(
            "", "higher", [least], f"the least busy node of {words}", [beside.least_busy_share], BUSY_GOAL
        ),
        f"busy_share_mean_{name}_nodes": Figure("", "higher", [mean], f"all of {words}", [beside.busy_share], BUSY_GOAL),
        f"handover_share_{name}_nodes": Figure(
            "", "lower", [outcome.handover_share], f"all of {words}", [beside.handover_share], HANDOVER_GOAL
        ),
        f"lost_or_repeated_tokens_{name}_nodes": Figure(
            "tokens", "lower", [outcome.lost_or_repeated_tokens], lost, [beside.lost_or_repeated_tokens], 0.0
        ),
    }


def _simulated(scene: Scene) -> Outcome:
    began = time.process_time()
    outcome = simulate(scene)
    seconds = time.process_time() - began
    episodes = scene.steps * scene.groups_per_step * scene.workload.group_size
    print(
        f"auto at {scene.nodes:,} nodes, 1:{1 / RATIO:g}, {scene.steps} steps of {scene.groups_per_step:,} groups: "
        f"{words_of(outcome)}; {episodes:,} episodes trained, {outcome.num_plans:,} decisions, {seconds:,.0f} s of one core",
        flush=True,
    )
    return outcome


def words_of(outcome: Outcome) -> str:
    """An outcome in one line."""
    return (
        f"{outcome.throughput:,.0f} tokens/s, {outcome.over_bound:.3f} of the bound, busy {outcome.busy_share:.1%} (least "
        f"{outcome.least_busy_share:.1%}), hand-over {outcome.handover_share:.2%}, "
        f"masked {outcome.masked_tokens / (outcome.trained_tokens + outcome.masked_tokens):.2%}, "
        f"lost or repeated {outcome.lost_or_repeated_tokens}, prefilled again {outcome.reprefilled_tokens:,}"
    )
