"""Trying a server out: does it return token ids, logprobs and stop tokens, and of which distribution are its logprobs?

Asked once for each server, before anything of a run is sent to it. Trying is surer than believing what servers say of
themselves: vLLM computes logprobs before temperature unless it was started with ``--logprobs-mode processed_logprobs``, and
then behind top-p as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.remote_errors import ServerFault, ServerNonsense, ServerRefusal

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
