"""One run is one TOML file: model, tasks, agents, sampling, algorithm, fleet, checkpoints, evaluation.

The sections are in ``sampling_sections`` and ``training_sections``; here are the rules that hold between them, and the reading
of a file. A wrong key or value is refused with a message that names the key and what to set. The validated document travels in
RunRequested, so that all services see the same run. docs/run-file.md is generated from these classes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from seamlessflow.contracts import partition
from seamlessflow.contracts.tags import LONG, MAX_COMPONENTS, MAX_WORK_TAGS, SLOT, long_tag, slot_tag
from seamlessflow.errors import ConfigError

from .sampling_sections import REPORTED, AgentSection, EvaluationSection, ModelSection, SamplingSection, Section, TasksSection
from .training_sections import (
    FULL_ALWAYS,
    MAX_BUCKETS,
    MAX_SHARDS,
    POLICIES,
    AlgorithmSection,
    CheckpointSection,
    FleetSection,
    LoraSection,
    TagRuleSection,
    WeightsSection,
)

__all__ = [
    "FULL_ALWAYS",
    "MAX_BUCKETS",
    "MAX_SHARDS",
    "POLICIES",
    "REPORTED",
    "AgentSection",
    "AlgorithmSection",
    "CheckpointSection",
    "EvaluationSection",
    "FleetSection",
    "LoraSection",
    "ModelSection",
    "RunConfig",
    "SamplingSection",
    "Section",
    "TagRuleSection",
    "TasksSection",
    "WeightsSection",
    "load_run_config",
    "parse_run_config",
]


TWO_ENGINES = ("transformers", "scripted")
"""Engines of which a worker can have two."""


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
    lora: LoraSection | None = None
    """None: all weights are trained."""
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
        if wrong := [tag for agent in self.agents for tag in (agent.tag, agent.needs) if tag and LONG in tag.split("+")]:
            raise ValueError(
                f"with fleet.long_tail {LONG} is the class of generations that are expected to be long, and no node has it: "
                f"choose another name in {', '.join(dict.fromkeys(wrong))}"
            )
        if len(tags) > (most := MAX_WORK_TAGS // 2):
            raise ValueError(f"with fleet.long_tail agents may have up to {most} different tags, got {', '.join(tags)}")
        if full := [tag for tag in tags if len(tag.split("+")) == MAX_COMPONENTS]:
            raise ValueError(f"with fleet.long_tail a tag has up to {MAX_COMPONENTS - 1} components, got {', '.join(full)}")
        return self

    @model_validator(mode="after")
    def _versions_can_be_kept(self) -> RunConfig:
        if self.weights.pinned is None:
            return self
        if self.fleet.long_tail is not None:
            raise ValueError("weights.pinned and fleet.long_tail both tell generations apart by tags: leave out one of them")
        if self.model.engine not in TWO_ENGINES:
            raise ValueError(f"weights.pinned needs two engines in a worker: model.engine must be {' or '.join(TWO_ENGINES)}")
        tags = sorted({agent.tag for agent in self.agents})
        if len(tags) > 1:
            raise ValueError(f"with weights.pinned all agents have the same tag, got {', '.join(tags)}")
        if len(tags[0].split("+")) == MAX_COMPONENTS:
            raise ValueError(f"with weights.pinned a tag has up to {MAX_COMPONENTS - 1} components, got {tags[0]}")
        if wrong := [a for agent in self.agents for a in (agent.tag, agent.needs) if a and any(map(SLOT.match, a.split("+")))]:
            raise ValueError(f"with weights.pinned v0, v1, ... are slots of versions: choose another name in {wrong[0]}")
        return self

    @model_validator(mode="after")
    def _somebody_samples_during_a_step(self) -> RunConfig:
        if self.algorithm.begin_share < 1 and self.fleet.policy == "colocated":
            raise ValueError("algorithm.begin_share must be 1 where fleet.policy is colocated: no node samples during a step")
        return self

    @property
    def envs(self) -> tuple[str, ...]:
        """The environment tags of the agents, in order."""
        return tuple(agent.env for agent in self.agents)

    @property
    def has_classes(self) -> bool:
        """Whether its tags tell long generations from others."""
        return self.fleet.long_tail is not None

    @property
    def version_slots(self) -> int:
        """Slots of weights versions among its tags, with ``weights.pinned``: so many that what is not too old to be trained has
        one of its own. 0: generations go on under the newest version."""
        return 0 if self.weights.pinned is None else min(MAX_WORK_TAGS, self.algorithm.max_staleness + 2)

    @property
    def work_tags(self) -> tuple[str, ...]:
        """Tags of the run's generations, in alphabetical order; with ``fleet.long_tail`` each also for its long ones, with
        ``weights.pinned`` one for each slot."""
        tags = {agent.tag for agent in self.agents}
        if self.version_slots:
            return tuple(sorted(slot_tag(tag, slot) for tag in tags for slot in range(self.version_slots)))
        return tuple(sorted(tags if self.fleet.long_tail is None else tags | {long_tag(tag) for tag in tags}))

    def agent(self, env: str) -> AgentSection | None:
        """The agent of an environment tag, or None."""
        return next((agent for agent in self.agents if agent.env == env), None)

    def shard_of(self, episode: str) -> int:
        """The shard of an episode."""
        return partition(episode, self.fleet.shards)

    @property
    def document(self) -> dict[str, Any]:
        """What ``parse_run_config`` reads, as JSON values, without keys whose value equals their default: older services refuse
        a key that they do not know."""
        written = self.model_dump(mode="json", exclude_none=True)
        if self.weights == FULL_ALWAYS:
            del written["weights"]
        return written


def load_run_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read and validate a run file. ``overrides`` maps dotted keys to values. Raises ConfigError that names the setting."""
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
        "evaluation": EvaluationSection, "lora": LoraSection, "weights": WeightsSection,
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
