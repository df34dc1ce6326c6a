"""One run is one TOML file: model, tasks, agents, sampling, algorithm, fleet, checkpoints, evaluation.

Every field says what its value means. A wrong key or value is refused with a message that names the key and what to set.
The validated document travels in RunRequested, so that all services see the same run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .contracts import partition
from .contracts.base import Token
from .contracts.tags import LONG, MAX_COMPONENTS, MAX_WORK_TAGS, ROLES, ROLLOUT_TAG, canonical, component, long_tag, work_tag
from .errors import ConfigError
from .tag_rules import parse_rule

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
REPORTED = "reported"
"""Instead of a verifier: an external agent says the reward itself."""
MAX_SHARDS = 16
"""The server's permissions name every shard and bucket, so there is a highest one."""
MAX_BUCKETS = 64
"""A worker without a bucket of its own keeps no group's prefix, so there are as many as fleets have workers. Each worker has a
pull open on every bucket of every tag: 1,024 idle ones (16 workers and 64 buckets, or 32 and 32) take the server 3 to 4 % of a
core, so 64 workers with a bucket each should take 15 %; and a worker may get one generation too many for each bucket. Both grow
with the square of the fleet, so beyond that all workers share all buckets."""


class Section(BaseModel):
    """Unknown keys are typing mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelSection(Section):
    """Which model is trained."""

    name: str
    """``smollm2-135m-instruct`` (prepared from a package), ``tiny-calculator`` (made on the spot), a folder, or a hub id."""
    engine: Literal["transformers", "continuous_batching", "scripted"] = "transformers"
    """What samples. transformers: our own loop over a transformers model, the faster one on a CPU. continuous_batching:
    transformers' own scheduler and paged cache; keeps the same promises, useful to check the other against. scripted:
    no model, for tests."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Served precision. auto: the model's own."""
    max_context_tokens: PositiveInt = 2048
    """Longest prompt plus answer; a longer prompt gives the agent the error that makes it compact."""


class TasksSection(Section):
    """Where tasks come from. Leave out to publish them to the queue yourself (``seamlessflow submit``)."""

    source: str = "reasoning_gym"
    """``reasoning_gym``: made from a procedural data set. ``module:function``: ``function(num_questions, seed, **options)``
    gives mappings with at least ``question`` and ``answer``. ``queue``: only what users publish."""
    dataset: str = "chain_sum"
    """Name of the reasoning-gym data set."""
    options: dict[str, Any] = {}
    """Its options, as its documentation names them."""
    num_questions: PositiveInt = 1000
    """How many entries to generate before equal questions are removed."""
    held_out_percent: Annotated[int, Field(ge=0, le=90)] = 20
    """Share of questions, chosen by a digest of their text, that is only ever evaluated."""
    max_held_out: PositiveInt | None = None
    """Evaluate at most this many held-out questions. None: all."""
    question_template: str = "{question}"
    """The prompt; ``{question}`` is the data set's question. All other braces stay as they are."""

    @field_validator("question_template")
    @classmethod
    def _asks_something(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError("must hold {question}, which is replaced by the data set's question")
        return template

    @field_validator("source")
    @classmethod
    def _known_source(cls, source: str) -> str:
        if source not in ("reasoning_gym", "queue") and ":" not in source:
            raise ValueError("must be reasoning_gym, queue, or module:function")
        return source


class AgentSection(Section):
    """One kind of agent. An episode of its environment tag runs it once."""

    env: Token
    """Its environment tag."""
    entrypoint: str | None = None
    """``module:function``, run in a process of its own: ``function(task: dict) -> str | None``.
    What it returns (else what it prints) is judged."""
    command: tuple[str, ...] | None = None
    """Program and arguments, no shell; ``{prompt}`` is replaced, and ``{checkout}`` by the project's folder: it starts in an
    empty one of its own. What it prints on standard output is judged."""
    external: bool = False
    """True: it runs elsewhere, opens episodes at a gateway over HTTP and says there how each ended (docs/operations.md)."""
    reward: str = "reasoning_gym"
    """``reasoning_gym`` (the data set's own scorer) or a verifier ``module:function``:
    ``function(answer: str, task: dict) -> float``. ``reported``: an external agent says the number itself."""
    deadline_seconds: PositiveFloat = 120.0
    """Killed (an external one: its episode ended) after this long. The clock stands still while a call waits for its answer;
    ten times as long (at least half an hour) is the limit for all time together."""
    memory_mb: PositiveInt = 2048
    """Killed beyond this much memory of its own."""
    output_bytes: PositiveInt = 1_000_000
    """Killed after printing more than this."""
    environment: dict[str, str] = {}
    """Added to the agent's environment, which otherwise holds only PATH, HOME, the endpoint and its key."""
    fresh: bool = False
    """Run each entrypoint in a brand-new interpreter, instead of forking it from a clean one that imported its module."""
    share: PositiveInt = 1
    """How many of every sum-of-shares tasks go to this agent."""
    tag: str = ROLLOUT_TAG
    """What a node must have to sample for its calls: components joined by "+", as in ``h800`` or ``h800+prefill``. ``rollout``
    is always among them, written or not."""
    needs: str | None = None
    """What an agent-runner's node must have to run it, joined likewise, as in ``browser``. None: any will do."""

    @field_validator("tag")
    @classmethod
    def _spelled_in_one_way(cls, tag: str) -> str:
        return work_tag(tag)

    @field_validator("needs")
    @classmethod
    def _are_tags(cls, needs: str | None) -> str | None:
        if needs is not None and LONG in (needs := canonical(needs)).split("+"):
            raise ValueError(f"{LONG} is the class of generations that are expected to be long: no node has it")
        return needs

    @model_validator(mode="after")
    def _one_way_to_run(self) -> AgentSection:
        if (self.entrypoint is not None) + (self.command is not None) + self.external != 1:
            raise ValueError(f"agent {self.env!r} needs exactly one of entrypoint, command and external = true")
        if self.entrypoint is not None and ":" not in self.entrypoint:
            raise ValueError(f"entrypoint {self.entrypoint!r} must be module:function")
        if self.reward == REPORTED and not self.external:
            raise ValueError(f"agent {self.env!r}: only an external agent reports its reward; name a verifier module:function")
        return self


class SamplingSection(Section):
    """How tokens are drawn in training (evaluation is always greedy), and after which history."""

    history: Literal["as_sampled", "as_template"] = "as_sampled"
    """How a conversation's earlier turns stand in the next prompt. as_sampled: the ids they were sampled as, reasoning
    included. as_template: as the model's template shows them now; where that differs, the conversation forks."""

    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Softmax temperature; the trainer computes logprobs at the same one."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; below 1 the recorded logprobs are those before the cut."""
    max_tokens: PositiveInt = 256
    """Budget of one call; an agent may ask for less."""


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
    """The run stops, saying why, when this many groups failed one after the other and no episode completed in between.
    None: 2 * groups_per_step."""
    stop_after_dropped_groups: PositiveInt | None = None
    """The run ends when this many groups were dropped, for whatever reason, and no step was taken in between: well, where
    most had equal rewards and it took a step before or all were solved; else as a failure. None: 20 * groups_per_step."""
    micro_batch_tokens: PositiveInt = 4096
    """Tokens that go through the model at a time."""
    max_sequence_tokens: PositiveInt = 4096
    """Sampled tokens beyond this position are masked as too_long."""


POLICIES = ("multiplexed", "colocated", "disaggregated", "auto")


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
    """Generations side by side on one rollout-worker. Never more than contexts fit into its engine's cache, those of episodes
    whose tools work included: what it takes beyond waits in the engine, and pushes out what is kept for their next turns
    (docs/adr/0012)."""
    agents: PositiveInt = 32
    """Episodes side by side on one agent-runner; those of external agents are counted apart, up to as many again."""
    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = 1
    """Partitions of the trajectory-manager. Several managers share them: see docs/operations.md."""
    buckets: Annotated[int, Field(ge=1, le=MAX_BUCKETS)] = 1
    """Affinity buckets per tag. Episodes of one call share that of their group, episodes of several have their own; each has a
    worker that rolls out as its owner, whose prefix cache they find: eight for each worker where there are many turns and
    nodes are lent to training (so that none owns half as much again as another), else as many as workers. Fewer than workers:
    all workers share all evenly."""
    tag_rules: tuple[TagRuleSection, ...] = ()
    """Tags that nodes have for this run because of what their hardware is."""
    long_tail: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Episodes that should take this many times the run's mean tokens, or more, are started first, and kept off nodes that
    training will call back as long as those have anything else to do. What a task should take is what the same prompt took
    before, or what its author says (``TaskSubmitted.expected_tokens``). None: all are alike. Try 1.5 where steps are
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


FULL_ALWAYS = WeightsSection(full_every=1)


class EvaluationSection(Section):
    """Held-out tasks, greedy."""

    before: bool = True
    """Evaluate the weights the run starts from."""
    after: bool = True
    """Evaluate the last weights."""


class RunConfig(Section):
    """The whole run."""

    name: str = "run"
    """Prefix of the run's name."""
    seed: int = 0
    """Seeds data, sampling, and the model where one is made."""
    model: ModelSection
    tasks: TasksSection = TasksSection(source="queue")
    agents: Annotated[tuple[AgentSection, ...], Field(min_length=1)]
    sampling: SamplingSection = SamplingSection()
    algorithm: AlgorithmSection
    fleet: FleetSection = FleetSection()
    checkpoints: CheckpointSection = CheckpointSection()
    weights: WeightsSection = FULL_ALWAYS
    """Of a document without it, as of a run that an older version began: its workers may not read changes."""
    evaluation: EvaluationSection = EvaluationSection()

    @field_validator("agents")
    @classmethod
    def _distinct_tags(cls, agents: tuple[AgentSection, ...]) -> tuple[AgentSection, ...]:
        tags = [agent.env for agent in agents]
        if len(set(tags)) != len(tags):
            raise ValueError(f"every agent needs an env of its own, got {tags}")
        if len(work_tags := sorted({agent.tag for agent in agents})) > MAX_WORK_TAGS:
            raise ValueError(f"agents may have up to {MAX_WORK_TAGS} different tags, got {', '.join(work_tags)}")
        return agents

    @model_validator(mode="after")
    def _every_tag_has_room_for_its_class(self) -> RunConfig:
        if self.fleet.long_tail is None:
            return self
        tags = sorted({agent.tag for agent in self.agents})
        if len(tags) > (most := MAX_WORK_TAGS // 2):
            raise ValueError(f"with fleet.long_tail agents may have up to {most} different tags, got {', '.join(tags)}")
        if full := [tag for tag in tags if len(tag.split("+")) == MAX_COMPONENTS]:
            raise ValueError(f"with fleet.long_tail a tag has up to {MAX_COMPONENTS - 1} components, got {', '.join(full)}")
        return self

    @model_validator(mode="after")
    def _somebody_samples_during_a_step(self) -> RunConfig:
        if self.algorithm.begin_share < 1 and self.fleet.policy == "colocated":
            raise ValueError("algorithm.begin_share must be 1 where fleet.policy is colocated: nobody samples during a step")
        return self

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(agent.env for agent in self.agents)

    @property
    def work_tags(self) -> tuple[str, ...]:
        """Tags of the run's generations, in alphabetical order; with ``fleet.long_tail`` each also for its long ones."""
        tags = {agent.tag for agent in self.agents}
        return tuple(sorted(tags if self.fleet.long_tail is None else tags | {long_tag(tag) for tag in tags}))

    def agent(self, env: str) -> AgentSection | None:
        """The agent of an environment tag, or None."""
        return next((agent for agent in self.agents if agent.env == env), None)

    def shard_of(self, episode: str) -> int:
        return partition(episode, self.fleet.shards)

    @property
    def document(self) -> dict[str, Any]:
        """What ``parse_run_config`` reads, as JSON values, without keys that say what their absence says: older services refuse
        a key that they do not know."""
        written = self.model_dump(mode="json", exclude_none=True)
        if self.weights == FULL_ALWAYS:
            del written["weights"]
        return written


def load_run_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read and validate a run file. ``overrides`` maps dotted keys to values. Raises ConfigError that says what to set."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as wrong:
        raise ConfigError(f"{path}: no such file; see deploy/demo for examples") from wrong
    except OSError as wrong:
        raise ConfigError(f"{path}: cannot be read: {wrong.strerror}") from wrong
    except UnicodeDecodeError as wrong:
        raise ConfigError(f"{path}: not TOML: not UTF-8 at byte {wrong.start}") from wrong
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"{path}: not TOML: {wrong}") from wrong
    document.setdefault("weights", {})  # no run of an older version
    for dotted, value in (overrides or {}).items():
        _set(document, dotted, value)
    return parse_run_config(document, source=str(path))


def parse_run_config(document: dict[str, Any], *, source: str = "run document") -> RunConfig:
    """Validate a document. Raises ConfigError with one line per problem."""
    try:
        return RunConfig.model_validate(document)
    except ValidationError as wrong:
        places = [error["loc"] for error in wrong.errors()]
        # A list with a wrong member is called too short as well.
        errors = [e for e in wrong.errors() if e["type"] != "too_short" or not _has_below(places, e["loc"])]
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'file'}: {_explain(e)}" for e in errors]
        raise ConfigError(f"{source} cannot be used:\n" + "\n".join(lines)) from wrong


def _has_below(places: Sequence[tuple[int | str, ...]], place: tuple[int | str, ...]) -> bool:
    return any(len(other) > len(place) and other[: len(place)] == place for other in places)


def _explain(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        section = _section_of(error["loc"])
        return f"no such key; known here: {', '.join(sorted(section))}" if section else "no such key"
    if error["type"] == "missing":
        return "missing: this key has no default"
    return f"{error['msg']} (got {error['input']!r})"


def _section_of(location: tuple[Any, ...]) -> list[str]:
    sections: dict[str, type[Section]] = {
        "model": ModelSection, "tasks": TasksSection, "agents": AgentSection, "sampling": SamplingSection,
        "algorithm": AlgorithmSection, "fleet": FleetSection, "checkpoints": CheckpointSection,
        "evaluation": EvaluationSection,
    }  # fmt: skip
    kind = sections.get(str(location[0])) if len(location) > 1 else RunConfig
    kind = TagRuleSection if location[:2] == ("fleet", "tag_rules") else kind
    return list(kind.model_fields) if kind else []


def _set(document: dict[str, Any], dotted: str, value: Any) -> None:
    """A section that is no table is left as it is: validation names it."""
    *parents, last = dotted.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
        if not isinstance(document, dict):
            return
    document[last] = value
