"""Sections of a run file about sampling: model, tasks, agents, sampling, evaluation.

Every field documents its value. A wrong key or value is refused with a message that names the setting; ``run`` puts the
key's name before them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from seamlessflow.contracts.base import Token
from seamlessflow.contracts.tags import ROLLOUT_TAG, canonical, work_tag

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
REPORTED = "reported"
"""Instead of a verifier: an external agent reports the reward itself."""


class Section(BaseModel):
    """Unknown keys are typing mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelSection(Section):
    """Which model is trained."""

    name: str
    """``smollm2-135m-instruct`` (prepared from a package), ``tiny-calculator`` (made on the spot), a folder, or a hub id."""
    engine: Literal["transformers", "continuous_batching", "vllm", "remote", "scripted"] = "transformers"
    """What samples. transformers: our own loop over a transformers model, the faster one on a CPU. continuous_batching:
    transformers' own scheduler and paged cache; keeps the same promises, useful to check the other against. vllm: vLLM inside
    the worker, on one device or many; needs the extra vllm, or ./task setup:vllm on a CPU. remote: servers that already run,
    vLLM's or SGLang's (docs/operations.md). scripted: no model, for tests."""
    engine_options: dict[str, Any] = {}
    """Handed through to the engine, which refuses at its start what it does not know or what is ours to set."""
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
    """True: it runs elsewhere, opens episodes at a gateway over HTTP and reports there how each ended (docs/operations.md)."""
    reward: str = "reasoning_gym"
    """``reasoning_gym`` (the data set's own scorer) or a verifier ``module:function``:
    ``function(answer: str, task: dict) -> float``. ``reported``: an external agent reports the number itself."""
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
        return None if needs is None else canonical(needs)

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


class EvaluationSection(Section):
    """Held-out tasks, greedy."""

    before: bool = True
    """Evaluate the weights the run starts from."""
    after: bool = True
    """Evaluate the last weights."""
