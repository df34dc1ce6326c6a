"""Passes of the decode loop: whatever comes, goes and is shared, each token is what the sequence alone would give."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow_rollout_worker.engines.base import SamplingParams

torch = pytest.importorskip("torch")

from seamlessflow_rollout_worker.engines.token_sampler import Draws  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers import decode_batch  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.causal_model import CausalModel  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.decode_batch import DecodeBatch, Sequence  # noqa: E402 - after the skip
from seamlessflow_rollout_worker.engines.transformers.packed_attention import New, bands_of  # noqa: E402 - after the skip

GREEDY = SamplingParams(temperature=0.0, top_p=1.0, max_tokens=6, stop_token_ids=())
prompts = st.lists(st.integers(1, 3), min_size=1, max_size=40)
moves = st.one_of(prompts, st.sampled_from(["step", "step", "remove", "forget", "release"]))


@pytest.fixture(scope="module")
def model(tiny_llamas: list[Path]) -> CausalModel:
    return CausalModel.load(tiny_llamas[0], dtype="float32")


def sequence(ticket: int, prompt: list[int], params: SamplingParams = GREEDY) -> Sequence:
    return Sequence(ticket, list(prompt), params, Draws(1, None), params.max_tokens)  # type: ignore[arg-type]


def alone(model: CausalModel, token_ids: list[int], num_prompt: int) -> list[tuple[int, float]]:
    """Greedy choice and its logprob at each sampled position, by one full pass of transformers' own attention."""
    module = model.module
    module.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            logprobs = torch.log_softmax(module(input_ids=torch.tensor([token_ids])).logits[0].float(), -1)
    finally:
        module.set_attn_implementation("seamlessflow_rows")
    rows = logprobs[num_prompt - 1 : -1]
    return [(int(row.argmax()), float(row.max())) for row in rows]


@settings(max_examples=25)
@given(program=st.lists(moves, max_size=30))
def test_company_changes_nothing(program: list[object], model: CausalModel) -> None:
    """Prompts that share beginnings, fewer slots than requests, prompts longer than a pass, removals, lost caches."""
    patch = pytest.MonkeyPatch()
    patch.setattr(decode_batch, "MAX_PASS_TOKENS", 9)
    patch.setattr(decode_batch, "WORTH_WAITING", 3)
    batch, running, said = DecodeBatch(model, num_slots=3, max_tokens=64), dict[int, Sequence](), dict[int, list[float]]()
    lengths: dict[int, int] = {}

    def step() -> None:
        for token in batch.step():
            said[token.ticket].append(token.logprob)
            if token.finish is not None:
                done = running.pop(token.ticket)
                expected = alone(model, done.token_ids, lengths[token.ticket])
                assert done.token_ids[lengths[token.ticket] :] == [choice for choice, _ in expected]
                assert said[token.ticket] == pytest.approx([logprob for _, logprob in expected], abs=1e-4)

    try:
        for ticket, move in enumerate(program):
            if isinstance(move, list):
                running[ticket], said[ticket], lengths[ticket] = sequence(ticket, move), [], len(move)
                batch.add(running[ticket])
            elif move == "step":
                step()
            elif move == "remove" and running:
                gone = min(running)
                running.pop(gone)
                assert batch.remove(gone)
            elif move == "forget":
                batch.forget_cache()
            elif move == "release":
                batch.release_cache()
        for _ in range(1000):
            if not running:
                break
            step()
    finally:
        patch.undo()
    assert not running
    assert len(batch) == 0


def fed(monkeypatch: pytest.MonkeyPatch, model: CausalModel) -> list[int]:
    """Number of tokens of every pass, as the model is asked for them."""
    passes: list[int] = []
    ask = model.logits
    monkeypatch.setattr(model, "logits", lambda ids, *rest: (passes.append(len(ids)), ask(ids, *rest))[1])
    return passes


def test_a_group_computes_its_prompt_once(monkeypatch: pytest.MonkeyPatch, model: CausalModel) -> None:
    """Eight siblings: the first reads the prompt, the others its last token; decoding goes on in the same passes."""
    passes = fed(monkeypatch, model)
    batch = DecodeBatch(model, num_slots=8, max_tokens=128)
    for ticket in range(8):
        batch.add(sequence(ticket, list(range(1, 61))))
    while len(batch):
        batch.step()

    assert passes == [60, 8, 8, 8, 8, 8, 7]


def test_the_second_turn_finds_the_first(monkeypatch: pytest.MonkeyPatch, model: CausalModel) -> None:
    """Although others ran in between: what was used longest ago makes room, not what ended last."""
    batch = DecodeBatch(model, num_slots=2, max_tokens=128)
    first = sequence(0, list(range(1, 41)))
    batch.add(first)
    while len(batch):
        batch.step()
    for ticket in (1, 2):
        batch.add(sequence(ticket, [70 + ticket] * 30))
        while len(batch):
            batch.step()
    passes = fed(monkeypatch, model)
    batch.add(sequence(3, [*first.token_ids, 9, 9, 9]))
    batch.step()

    assert passes == [4]  # the last token sampled in the first turn was never fed


def test_decoding_goes_on_while_a_long_prompt_is_read(monkeypatch: pytest.MonkeyPatch, model: CausalModel) -> None:
    """A prompt longer than a pass is read in pieces, and each piece takes the others' next tokens along."""
    monkeypatch.setattr(decode_batch, "MAX_PASS_TOKENS", 20)
    batch = DecodeBatch(model, num_slots=4, max_tokens=128)
    batch.add(sequence(0, [1, 2, 3]))
    batch.step()
    batch.add(sequence(1, list(range(10, 70))))

    assert [[token.ticket for token in batch.step()] for _ in range(4)] == [[0], [0], [0], [0, 1]]


def test_bands_hold_rows_that_bring_alike() -> None:
    """One token each: nothing is padded; longer ones are padded to their longest; a row that brings nothing is left out."""
    bands = list(bands_of([New(4, 1), New(9, 1), New(0, 3), New(2, 5), New(7, 0), New(1, 1)], torch.float32))

    assert [(band.rows, band.line, band.shape, band.span) for band in bands] == [
        (slice(0, 2), slice(0, 2), (2, 1), 10),
        (slice(2, 4), slice(2, 10), (2, 5), 7),
        (slice(5, 6), slice(10, 11), (1, 1), 2),
    ]
    assert [band.picks_n is None for band in bands] == [True, False, True]
    assert bands[1].picks_n is not None
    assert bands[1].picks_n.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]


def test_it_counts_how_much_of_its_prompts_the_cache_held(model: CausalModel) -> None:
    """A second prompt that begins like the first finds what the first one left, all but the token whose logits are needed."""
    batch, prompt = DecodeBatch(model, num_slots=2, max_tokens=64), [1, 2, 3] * 5
    for ticket in (1, 2):
        batch.add(sequence(ticket, prompt))
        while len(batch):
            batch.step()

    assert (batch.prefix_use.prompt_tokens, batch.prefix_use.cached_tokens) == (30, 14)
