"""Sections of a run file about training: algorithm, fleet, checkpoints, weights.

Every field documents its value, as in ``sampling_sections``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from seamlessflow.contracts.tags import ROLES, component

from .sampling_sections import PositiveFloat, PositiveInt, Section
from .tag_rules import parse_rule

MAX_SHARDS = 16
"""The server's permissions name every shard and bucket, so there is a highest one."""
MAX_BUCKETS = 64
"""A worker without a bucket of its own keeps no group's prefix, so there are as many as fleets have workers. Each worker has a
pull open on every bucket of every tag: 1,024 idle ones (16 workers and 64 buckets, or 32 and 32) take the server 3 to 4 % of a
core, so 64 workers with a bucket each should take 15 %; and a worker may get one generation too many for each bucket. Both grow
with the square of the fleet, so beyond that all workers share all buckets."""
POLICIES = ("multiplexed", "colocated", "disaggregated", "auto")


class AlgorithmSection(Section):
    """How samples become gradients."""

    name: Literal["grpo"] = "grpo"
    """GRPO: advantages relative to the group."""
    steps: PositiveInt
    """Optimiser steps of the run."""
    groups_per_step: PositiveInt = 8
    """Groups in one step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Episodes in one group."""
    learning_rate: Annotated[float, Field(ge=0)] = 1e-6
    """AdamW. 0 checks that engine and trainer agree."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Linear warm-up."""
    decay: Literal["none", "linear"] = "none"
    """linear: the rate falls from its peak after warm-up to a tenth of it at the last step."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation (GRPO); false: only centre them (Dr. GRPO)."""
    importance_cap: PositiveFloat = 2.0
    """Truncation of the per-token ratio between trainer and engine."""
    max_staleness: Annotated[int, Field(ge=0)] = 2
    """Tokens sampled more optimiser steps ago are masked; groups are admitted so that few get that old."""
    begin_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """A step begins when this share of its groups is there; the others are taken as they come while it learns, and what has
    not come a minute after the one before is left for the next step. For fleets in which others sample during a step."""
    drop_zero_variance: bool = True
    """Drop groups in which every reward is equal, and sample others instead (every step has its full share of groups that
    teach). False: they count as groups of the step, and cost it no gradients (steps come at a steady pace)."""
    stop_after_failed_groups: PositiveInt | None = None
    """The run stops with this reason when this many groups failed one after the other and no episode completed in between.
    None: 2 * groups_per_step."""
    stop_after_dropped_groups: PositiveInt | None = None
    """The run ends when this many groups were dropped, for whatever reason, and no step was taken in between: well, where
    most had equal rewards and it took a step before or all were solved; else as a failure. None: 20 * groups_per_step."""
    micro_batch_tokens: PositiveInt = 4096
    """Tokens that go through the model at a time."""
    max_sequence_tokens: PositiveInt = 4096
    """Sampled tokens beyond this position are masked as too_long."""
    logprob_gap_limit: PositiveFloat | None = None
    """Nats. How far the trainer's logprobs may lie from the engine's at equal weights, on the mean of a step's tokens, before
    the step counts towards an alarm. None: what rounding in the served precision explains (float32 0.05, bfloat16 0.1)."""
    logprob_gap_steps: PositiveInt | None = None
    """So many such steps in a row are an alarm, which `seamlessflow status` and the log show, and who sampled them. None: 3."""


class TagRuleSection(Section):
    """A tag for every node whose hardware is so."""

    tag: str
    """One component, such as ``prefill``."""
    when: str
    """One comparison of ``flops``, ``bandwidth`` and ``memory`` (a second, bytes a second, bytes) or a quotient of two of them:
    ``flops/bandwidth > 250``. Nodes whose facts are not known do not fulfil it."""

    @field_validator("tag")
    @classmethod
    def _no_role(cls, tag: str) -> str:
        if tag in ROLES:
            raise ValueError(f"{tag} is announced by processes, no rule can give it")
        return component(tag)

    @field_validator("when")
    @classmethod
    def _a_comparison(cls, when: str) -> str:
        parse_rule(when)
        return when


class FleetSection(Section):
    """How devices are shared, and how work is cut up."""

    policy: str = "multiplexed"
    """Who holds a device when: multiplexed, colocated, disaggregated or auto (docs/lifecycles.md), or one's own
    ``module:function``, which the scheduler imports."""
    train_nodes: PositiveInt = 1
    """Nodes that take a step together, at most. The torch learner takes its steps alone, on one node."""
    slots: PositiveInt = 32
    """Generations side by side on one rollout-worker. Of new episodes a worker takes no more than contexts fit into its cache,
    those of episodes whose tools work included, where its engine knows its cache and there are ``buckets`` (docs/adr/0019).
    Where it does not, give no more slots than that."""
    agents: PositiveInt = 32
    """Episodes side by side on one agent-runner; those of external agents are counted apart, up to as many again. More than
    workers have room for: those that wait for their first answer begin as soon as there is some."""
    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = 1
    """Partitions of the trajectory-manager. Several managers share them: see docs/operations.md."""
    buckets: Annotated[int, Field(ge=1, le=MAX_BUCKETS)] = 1
    """Affinity buckets per tag. Each has a worker that rolls out as its owner and keeps a prefix cache. Episodes of one call
    share that of their group; of several, the first call goes to a worker that has room, and the next ones to a bucket of it.
    Eight for each worker where there are many turns and nodes are lent to training (so that what a node leaves behind goes to
    all others alike), else as many as workers. Fewer than workers: all workers share all evenly. (Eight were simulated,
    docs/adr/0012; real services were measured with one for each.)"""
    tag_rules: tuple[TagRuleSection, ...] = ()
    """Tags that nodes have for this run because of what their hardware is."""
    long_tail: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Episodes that should take this many times the run's mean tokens, or more, are started first, and kept off nodes that
    training will call back as long as those have anything else to do. What a task should take is what the same prompt took
    before, or its author's estimate (``TaskSubmitted.expected_tokens``). None: all are alike. Try 1.5 where steps are
    synchronous (``max_staleness = 0``) and there are fewer slots than episodes in a step, with ``buckets`` at least as many
    as workers; where steps are not synchronous it costs a little (docs/adr/0010)."""
    max_attempts: PositiveInt = 3
    """Attempts at an episode before it counts as failed. One lost with its runner is repeated beyond that, up to 10 in all."""
    journal_bytes: int = -1
    """Limit of the journal; admission stops at 80 % of it. -1: none."""

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        if policy not in POLICIES and ":" not in policy:
            raise ValueError(f"must be {', '.join(POLICIES)}, or module:function")
        return policy


class CheckpointSection(Section):
    """When the trainer makes what it did durable."""

    every_steps: PositiveInt = 10
    """Steps between checkpoints; samples are acknowledged only then."""
    keep: PositiveInt = 2
    """Checkpoints that stay."""


class WeightsSection(Section):
    """How weights reach the rollout-workers."""

    full_every: PositiveInt = 10
    """Every so many versions are published in full; the others as what changed, bit for bit, where that is at most half as
    large (bfloat16: a few per cent; float32 values all change, so its versions stay full). A worker that starts fetches the
    nearest full version and the changes since. 1: every version in full, and no copy of the last in the trainer's memory."""
    pinned: Literal["episode"] | None = None
    """episode: all tokens of an episode are sampled under the version that was newest when it made its first call, while
    later episodes go on to newer ones. Workers then have two versions each, in two engines: twice the memory. An episode that
    outlives its version everywhere goes on under the newest (docs/adr/0020). None: all go on under the newest at once."""


FULL_ALWAYS = WeightsSection(full_every=1)
ALL_LINEAR = "all-linear"
"""Instead of names of layers, as PEFT has it."""


class LoraSection(Section):
    """Train low-rank adapters beside the model's weights, which stay as they are (LoRA, arXiv:2106.09685). Versions are the
    adapters alone, whole and in float32, whatever the value of ``weights.full_every``; workers merge them (docs/adr/0018)."""

    rank: PositiveInt = 16
    """Columns of the smaller matrices."""
    alpha: PositiveInt = 32
    """What the adapters compute is scaled by alpha / rank."""
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    """Which layers have an adapter. all-linear: every linear layer but the output layer. Else ends of their names, as in
    ``["q_proj", "v_proj"]``."""
    dropout: float = 0.0
    """Always 0: the trainer would compute the logprobs of another model than the one that sampled."""

    @field_validator("dropout")
    @classmethod
    def _none(cls, dropout: float) -> float:
        if dropout != 0:
            raise ValueError("must be 0, or left out: with dropout the trainer's logprobs are not those of what sampled")
        return dropout

    @field_validator("target_modules", mode="before")
    @classmethod
    def _name_layers(cls, names: Any) -> Any:
        if names == ALL_LINEAR:
            return names
        is_list = isinstance(names, list | tuple) and bool(names)
        if not is_list or not all(isinstance(name, str) and name.strip() == name != "" for name in names):
            raise ValueError(f'must be "{ALL_LINEAR}" or a list of the ends of layers\' names, such as ["q_proj", "v_proj"]')
        if ALL_LINEAR in names:
            raise ValueError(f'"{ALL_LINEAR}" stands alone, without brackets; a list names layers')
        return names
