"""What fields and enum members mean, for schemas and documents. One word has one meaning in all events.

A field's own docstring comes first; a field that needs none is a word of ``WORDS``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from enum import Enum

from seamlessflow.contracts.base import Record
from seamlessflow.errors import ConfigError

WORDS: Mapping[str, str] = {
    "bucket": "Affinity bucket of the episode; with the tag it names the consumer its generations go through.",
    "call": "One request of an agent to its endpoint.",
    "code": "Short name of the error, such as context_length_exceeded.",
    "completion_tokens": "Tokens sampled for this call.",
    "data": "For the verifier, and for agents that want more than the prompt. JSON values.",
    "document": "The whole run configuration (seamlessflow.run_config.RunConfig as JSON).",
    "env": "Environment tag: which kind of agent does it.",
    "episode": "One attempt at one execution of an agent: `<group>-<index>-<attempt>`.",
    "episodes": "Its members.",
    "epoch": "Of the node's lease; it only grows.",
    "error": "None: the call was answered.",
    "evaluation": "The evaluation round, or None for training.",
    "facts": "For people and dashboards.",
    "finish": "Why sampling ended.",
    "generation": "One unit of work for an engine; its id is the id of its call.",
    "group": "The episodes of one task.",
    "groups": "Groups it was taken on.",
    "headers": "As they were.",
    "instance": "The very process; new at each start.",
    "line": "Which life of the trainer: raised at every start, so that repeated step numbers are told apart.",
    "message": "For people.",
    "min_weights_version": "Its tokens may be sampled by this version or a later one.",
    "node": "A machine or a slice of it; processes that share a device share the node.",
    "nonce": "Of the claim it belongs to.",
    "num_bytes": "Size in the store.",
    "num_calls": "Calls the agent made.",
    "num_episodes": "How many episodes it has.",
    "num_groups": "Groups that wait for the step.",
    "num_handed_back": "Generations given back to the queue.",
    "num_roots": "Trees of the episode: conversations that share no prefix.",
    "num_sampled": "Tokens that were accepted into the journal.",
    "num_tokens": "Sampled tokens in all.",
    "origin": "Where the episode comes from.",
    "path": "Folder below the run's store.",
    "payload": "As it was.",
    "phase": "Where it is on its way.",
    "pid": "Process id on its machine.",
    "prompt": "What the agent is asked.",
    "prompt_tokens": "Tokens the engine was fed.",
    "reason": "For people, or one of the named reasons.",
    "reward": "None: there is no reward, which is not a reward of 0.",
    "role": "What the node does for the run.",
    "round": "Name of the evaluation round: before or after.",
    "run": "The run.",
    "runner": "Instance of the agent-runner.",
    "samples": "Paths from root to leaf.",
    "sampling": "How tokens are drawn.",
    "seed": "Makes the draw repeatable.",
    "service": "Which of the services.",
    "shard": "Partition of the trajectory-manager that owns the episode.",
    "slots": "Generations or episodes side by side.",
    "status": "How it ended.",
    "step": "Optimiser steps done along the surviving line.",
    "steps": "Optimiser steps done.",
    "stop_token_ids": "Sampling ends after any of these.",
    "subject": "As it was.",
    "suffix": "Ids after the parent's.",
    "tag": "What a node must have to sample it: components joined by +, in alphabetical order, rollout among them.",
    "tags": "What the node may pull.",
    "task": "One prompt or job a user published.",
    "token_ids": "As the engine sampled them.",
    "tool_choice": "As the agent asked; None: not asked.",
    "top_p": "Nucleus.",
    "trained": "Sampled tokens that took part in the loss.",
    "usage": "Token counts; None on an error.",
    "wall_seconds": "How long it took.",
    "weights_version": "Version of the weights; a number is never used twice.",
    "weights_versions": "Every version that sampled a token of it.",
    "worker": "Instance of the rollout-worker.",
}


def meaning(record: type[Record], field: str) -> str:
    """What a field's value means. Raises ConfigError for a field without a docstring."""
    described = record.model_fields[field].description
    if described:
        return " ".join(described.split())
    if field not in WORDS:
        raise ConfigError(f"{record.__name__}.{field} has no docstring, and {field!r} is no word of export_words.WORDS")
    return WORDS[field]


def member_meanings(kind: type[Enum]) -> dict[str, str]:
    """Value to docstring for every member of an enum; empty text where a member has none."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    meanings = {str(member.value): "" for member in kind}
    last: str | None = None
    for statement in body.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            last = str(kind[statement.targets[0].id].value)
        elif last and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            meanings[last] = " ".join(str(statement.value.value).split())
            last = None
    return meanings
