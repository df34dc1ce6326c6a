"""Finding out of which distribution a server's logprobs are, and which runs that is good for."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.remote.probe import (
    NUM_TOKENS,
    PROBE_TEMPERATURE,
    Meaning,
    Try,
    is_exact,
    meaning_of,
    try_out,
)
from seamlessflow_rollout_worker.engines.remote.server_control import Abilities, Needs

LOGITS = st.lists(st.lists(st.floats(-8, 8), min_size=20, max_size=20), min_size=NUM_TOKENS, max_size=NUM_TOKENS)
ALL = Abilities(aborts=True, pauses=True, updates=True)
NO_UPDATES = Abilities(aborts=True, pauses=True, updates=False)


def best_logprob(logits: list[float], temperature: float) -> float:
    scaled = [each / temperature for each in logits]
    return max(scaled) - max(scaled) - math.log(sum(math.exp(each - max(scaled)) for each in scaled))


@given(LOGITS, st.floats(-0.01, 0.01))
def test_each_meaning_is_told_from_the_others(rows: list[list[float]], rounding: float) -> None:
    """Whatever the model says, as long as it is not sure of all of it; a little noise changes nothing."""
    greedy = [best_logprob(row, 1.0) for row in rows]
    tempered = [best_logprob(row, PROBE_TEMPERATURE) + rounding for row in rows]
    gap = sum(abs(a - b) for a, b in zip(greedy, tempered, strict=True) if a < -0.05)
    assume(sum(each < -0.2 for each in greedy) >= 3 and gap > 0.3 * sum(-each for each in greedy))

    assert meaning_of(greedy, [each + rounding for each in greedy]) is Meaning.RAW
    assert meaning_of(greedy, [0.0] * len(greedy)) is Meaning.PROCESSED
    assert meaning_of(greedy, tempered) is Meaning.TEMPERED


def test_a_model_that_is_sure_of_everything_tells_nothing() -> None:
    """Every meaning is 0 there: no guess is made."""
    assert meaning_of([-0.001] * 6, [0.0] * 6) is None
    assert meaning_of([], []) is None


@pytest.mark.parametrize(
    ("meaning", "temperature", "top_p", "exact"),
    [
        (Meaning.TEMPERED, 0.7, 0.9, True),
        (Meaning.RAW, 1.0, 0.9, True),
        (Meaning.RAW, 0.7, 1.0, False),
        (Meaning.PROCESSED, 0.7, 1.0, True),
        (Meaning.PROCESSED, 1.0, 0.9, False),
        (Meaning.RAW, 0.0, 1.0, True),
        (Meaning.PROCESSED, 0.0, 0.5, True),
        (None, 1.0, 1.0, True),
        (None, 0.7, 1.0, False),
    ],
)
def test_a_meaning_is_exact_where_it_is_ours(meaning: Meaning | None, temperature: float, top_p: float, exact: bool) -> None:
    """After temperature, before top-p; greedy ones are of temperature 1 everywhere."""
    assert is_exact(meaning, temperature, top_p) is exact


def test_a_server_that_cannot_load_weights_is_refused_unless_a_fixed_model_is_meant() -> None:
    """Else the run would train without ever seeing what it learned."""
    with pytest.raises(BadInput, match="fixed_model"):
        Needs(1.0, 1.0, fixed_model=False).check("s", NO_UPDATES, Meaning.TEMPERED)
    Needs(1.0, 1.0, fixed_model=True).check("s", NO_UPDATES, Meaning.TEMPERED)
    Needs(1.0, 1.0, fixed_model=False).check("s", ALL, Meaning.TEMPERED)


def test_logprobs_of_another_meaning_are_refused_with_what_they_are() -> None:
    """The message names the meaning found, the run's settings, and what to change."""
    with pytest.raises(BadInput, match=r"before temperature; the run samples at temperature 0\.7"):
        Needs(0.7, 1.0, fixed_model=False).check("s", ALL, Meaning.RAW)
    with pytest.raises(BadInput, match="after temperature and top-p"):
        Needs(1.0, 0.9, fixed_model=False).check("s", ALL, Meaning.PROCESSED)


async def test_a_server_that_swallows_stop_tokens_is_refused() -> None:
    """The trainer would never learn to end a turn."""

    async def ask(prompt: list[int], params: SamplingParams) -> Try:
        ids = (4, 5, 6, 7, 8, 9)
        kept = ids[:1] if params.stop_token_ids else ids
        return Try(kept, (-1.0 if params.temperature == 0.0 else -2.0,) * len(kept))

    with pytest.raises(BadInput, match="stop tokens"):
        await try_out(ask, 50)
