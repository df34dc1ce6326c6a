"""Trying a server out: does it return token ids, logprobs and stop tokens, and of which distribution are its logprobs?

Asked once for each server, before anything of a run is sent to it. Trying is surer than believing what servers say of
themselves: vLLM computes logprobs before temperature unless it was started with ``--logprobs-mode processed_logprobs``, and
then behind top-p as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from seamlessflow.errors import BadInput
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.safetensors_file import Bits, map_tensors
from seamlessflow_rollout_worker.engines.base import SamplingParams

from .http_client import ServerFault, ServerNonsense, ServerRefusal

NUM_TOKENS = 6
PROBE_TEMPERATURE = 2.0
TINY_TOP_P = 1e-5
"""Leaves the best token only, so that two requests say the same tokens."""
CERTAIN = 0.05
"""A token this near to 0 has the same logprob in every meaning: it says nothing."""


class Meaning(StrEnum):
    """Of which distribution a server's logprobs are."""

    TEMPERED = "after temperature, before top-p"
    """Ours."""
    RAW = "before temperature"
    PROCESSED = "after temperature and top-p"


@dataclass(frozen=True, slots=True)
class Try:
    """Tokens of one try."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


Ask = Callable[[list[int], SamplingParams], Awaitable[Try]]
"""Sample from a server. Raises ServerFault or ServerRefusal."""


def is_exact(meaning: Meaning | None, temperature: float, top_p: float) -> bool:
    """Whether logprobs of this meaning are ours, for requests at this temperature and top-p. None: nobody knows."""
    if temperature == 0.0:
        return True  # greedy: at temperature 1, uncut, in every meaning
    if meaning is Meaning.RAW:
        return temperature == 1.0
    if meaning is Meaning.PROCESSED:
        return top_p == 1.0
    return meaning is Meaning.TEMPERED or (temperature == 1.0 and top_p == 1.0)


def meaning_of(greedy: Sequence[float], cut: Sequence[float]) -> Meaning | None:
    """From the logprobs of the same best tokens: greedy, and at PROBE_TEMPERATURE behind TINY_TOP_P. None: they tell nothing.

    Behind a cut to one token every logprob is 0; before temperature they are the greedy ones; else they differ from both.
    """
    telling = [(at_one, there) for at_one, there in zip(greedy, cut, strict=False) if at_one < -CERTAIN]
    if not telling:
        return None
    size = sum(-at_one for at_one, _ in telling) / len(telling)
    from_greedy = sum(abs(at_one - there) for at_one, there in telling) / len(telling)
    from_zero = sum(-there for _, there in telling) / len(telling)
    if from_zero < size / 10:
        return Meaning.PROCESSED
    return Meaning.RAW if from_greedy < size / 10 else Meaning.TEMPERED


def probe_prompts(vocab_size: int) -> list[list[int]]:
    """Texts no model is sure how to continue: ids spread over the vocabulary."""
    return [[(first + step * 7919) % vocab_size for step in range(8)] for first in (11, vocab_size // 3, vocab_size // 2)]


async def try_out(ask: Ask, vocab_size: int) -> Meaning | None:
    """The meaning of a server's logprobs; None where its model is too sure of everything to tell.

    Raises BadInput for a server that cannot serve any run, saying why; ServerFault for one that may later.
    """
    meaning: Meaning | None = None
    for prompt in probe_prompts(vocab_size):
        greedy = await _ask(ask, prompt, _params(temperature=0.0))
        if len(greedy.token_ids) != NUM_TOKENS:
            raise ServerFault(f"asked for {NUM_TOKENS} tokens, it sent {len(greedy.token_ids)}")
        cut = await _ask(ask, prompt, _params(temperature=PROBE_TEMPERATURE, top_p=TINY_TOP_P))
        num_same = _num_same(greedy.token_ids, cut.token_ids)
        meaning = meaning_of(greedy.logprobs[:num_same], cut.logprobs[:num_same])
        if meaning is not None:
            await _try_stop(ask, prompt, greedy.token_ids)
            break
    return meaning


async def _try_stop(ask: Ask, prompt: list[int], token_ids: tuple[int, ...]) -> None:
    """A stop token must be reported: the trainer learns to say it."""
    stop = token_ids[1]
    stopped = await _ask(ask, prompt, _params(temperature=0.0, stop_token_ids=(stop,)))
    expected = token_ids[: token_ids.index(stop) + 1]
    if stopped.token_ids[-1:] != (stop,) or len(stopped.token_ids) > len(expected):
        raise BadInput(
            f"it does not report stop tokens as they were sampled: expected {list(expected)}, got {list(stopped.token_ids)}"
        )


async def _ask(ask: Ask, prompt: list[int], params: SamplingParams) -> Try:
    try:
        return await ask(prompt, params)
    except ServerRefusal as refusal:
        key = " (the key is SEAMLESSFLOW_ENGINE_API_KEY of the worker)" if refusal.status == 401 else ""
        raise BadInput(f"it refuses what every run asks for{key}: {refusal}") from refusal
    except ServerNonsense as nonsense:
        raise BadInput(f"its answers cannot be used (each token needs its id and its logprob): {nonsense}") from nonsense


def _params(*, temperature: float, top_p: float = 1.0, stop_token_ids: tuple[int, ...] = ()) -> SamplingParams:
    return SamplingParams(temperature, top_p, NUM_TOKENS, stop_token_ids)


def _num_same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with: only those had the same text before them."""
    num = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        num += 1
    return num


# Weights whose tokens have changed places, to see whether a server uses all of what it loads.
#
# Rows of the input and of the output matrix change places by pairs, so a token's number is its neighbour's. Asked in
# neighbours,
# such a model must answer in neighbours, with the same logprobs: exactly the same model, told from the first one by every
# token.
# A server that kept its old output layer (vLLM on a CPU does, where a model has one matrix for input and output), that read
# another folder, or that says "loaded" and did nothing, answers otherwise.


FOLDER = "swapped"
EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight")
"""How the names of matrices with a row for each token end."""
FEWEST_ALIKE = 2
"""Of the prompts of a try: where two tokens are nearly equal, rounding may choose the other one."""
SAME_LOGPROB = 0.05


def neighbour(token: int, vocab_size: int) -> int:
    """Its own inverse. The last token of an odd vocabulary stays."""
    return token ^ 1 if token ^ 1 < vocab_size else token


def swapped_copy(version: Path, vocab_size: int) -> Path | None:
    """A folder within the version's, with its weights swapped. None: it has no matrix that we know by name. Blocks."""
    folder = version / FOLDER
    if not (folder / WEIGHTS_FILE).exists():
        if not any(_has_tokens(name, each, vocab_size) for name, each in map_tensors(version / WEIGHTS_FILE).items()):
            return None
        folder.mkdir(exist_ok=True)
        part = folder / f"{WEIGHTS_FILE}.part"
        shutil.copyfile(version / WEIGHTS_FILE, part)
        _swap(part, vocab_size)
        part.replace(folder / WEIGHTS_FILE)
    return folder


def are_alike(plain: Sequence[Try], swapped: Sequence[Try], vocab_size: int) -> bool:
    """Whether answers are each other's neighbours. Each pair is of the same prompt, greedily; its first tokens are compared."""
    num_alike = sum(
        neighbour(one.token_ids[0], vocab_size) == other.token_ids[0]
        and abs(one.logprobs[0] - other.logprobs[0]) < SAME_LOGPROB
        for one, other in zip(plain, swapped, strict=True)
    )
    return num_alike >= min(FEWEST_ALIKE, len(plain))


def _has_tokens(name: str, tensor: Bits, vocab_size: int) -> bool:
    return name.endswith(EMBEDDINGS) and len(tensor.shape) == 2 and tensor.shape[0] >= vocab_size


def _swap(file: Path, vocab_size: int) -> None:
    tensors = map_tensors(file, writable=True)
    for name, tensor in tensors.items():
        if _has_tokens(name, tensor, vocab_size):
            rows = tensor.words.reshape(tensor.shape)
            rows[:vocab_size] = rows[np.array([neighbour(token, vocab_size) for token in range(vocab_size)])]
    del tensors
    with file.open("rb") as written:
        os.fsync(written.fileno())  # servers may see it over a network
