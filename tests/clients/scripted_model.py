"""The only thing that is not real: a model that reads the conversation and says the line that a script has for it.

Tokenizer (byte-level BPE, trained on the spot), chat template, prompt ids and sampling loop are real. It spells every word
letter by letter, as no tokenizer would encode it: whoever encodes sampled text again has other ids than were sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from seamlessflow.contracts import Int32s
from seamlessflow_rollout_worker.engines.base import Chunk, SamplingParams
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine
from tests.domain.trajectory_builders import CHATML, tokenizer

NUM_MERGES = 120
MAX_CONTEXT_TOKENS = 400_000
"""Claude Code introduces itself and its tools with a hundred thousand characters."""
MAX_TOKENS = 2000
"""Of one answer."""
SECONDS_PER_TOKEN = 0.01
OPENING, CLOSING = "<|im_start|>", "<|im_end|>"
THOUGHT = "<think>\nTwo numbers, and a tool for them.\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class Line:
    """What the model says when the last message (role, newline, content) matches ``when``."""

    when: str
    says: str
    amid: str = ""
    """And the whole conversation so far matches this."""


def call(tool: str, arguments: dict[str, Any], *, thought: str = THOUGHT) -> str:
    """A call whose arguments are written as no serialiser writes them: clients that write them anew change them."""
    written = json.dumps(arguments, indent=3, separators=(" ,", ":  "))
    return f'{thought}<tool_call>{{"name": "{tool}", "arguments": {written}}}</tool_call>'


@cache
def words() -> Any:
    return tokenizer(NUM_MERGES)


def vocab_size() -> int:
    return int(words()._tokenizer.get_vocab_size())


def model_files() -> dict[str, bytes]:
    """What the trainer publishes: config, tokenizer, template."""
    return {
        "config.json": json.dumps({"vocab_size": vocab_size()}).encode(),
        "tokenizer.json": words()._tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": CLOSING}).encode(),
        "chat_template.jinja": CHATML.encode(),
        "generation_config.json": json.dumps({"eos_token_id": words().eos_token_id}).encode(),
    }


def spelled(text: str) -> list[int]:
    """Letter by letter."""
    return [token for letter in text for token in words().encode(letter)]


@dataclass
class Sampled:
    """What the engine did for one generation, hand-overs joined."""

    prompt: Int32s
    token_ids: list[int]
    versions: list[int]
    """One a token."""


class TellingEngine(ScriptedEngine):
    """A ScriptedEngine whose script is looked up in the text of the prompt. Remembers what it was fed and sampled."""

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__(vocab_size=vocab_size(), seconds_per_token=SECONDS_PER_TOKEN, max_context_tokens=MAX_CONTEXT_TOKENS)
        self._lines = lines
        self.sampled: dict[str, Sampled] = {}
        """By generation."""

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        generation = request_id.partition(".")[0]
        mine = self.sampled.setdefault(generation, Sampled(Int32s(prompt_ids), [], []))
        assert prompt_ids == [*mine.prompt, *mine.token_ids], f"{generation} goes on from other ids than were sampled"
        answer = [*spelled(self._line_after(words().decode(mine.prompt))), *words().encode(CLOSING)]
        self._script[tuple(prompt_ids)] = answer[len(mine.token_ids) :]
        async for chunk in super().generate(request_id, prompt_ids, params):
            mine.token_ids += chunk.token_ids
            mine.versions += [chunk.weights_version] * len(chunk.token_ids)
            yield chunk

    def _line_after(self, prompt: str) -> str:
        """``prompt``: ends with the opening of the model's own turn, unless no template was put around it."""
        conversation = prompt.removesuffix(f"{OPENING}assistant\n")
        last = conversation.rpartition(OPENING)[2].removesuffix(f"{CLOSING}\n")
        for line in self._lines:
            if re.search(line.when, last, re.DOTALL) and re.search(line.amid, conversation):
                return line.says
        raise AssertionError(f"the script has no line for {last[-500:]!r}")
