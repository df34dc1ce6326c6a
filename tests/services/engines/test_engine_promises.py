"""What every engine promises (seamlessflow_rollout_worker.engines.base), one test for each promise, on every engine.

| promise | test |
|---|---|
| logprobs after temperature, before top-p; greedy: at temperature 1 | test_logprobs_*, test_greedy_* |
| stop, length, context, budget | test_a_stop_token_*, test_the_budget_*, test_the_context_* |
| pause, load, resume: exact versions, nothing sampled while paused | test_pause_*, test_new_weights_*, ... |
| no old cache after load_weights | test_a_prompt_repeated_after_* |
| weights are read and checked before they are loaded | test_staged_*, test_weights_that_do_not_fit_* |
| interrupt, closing, stop lose nothing and free the slot | test_an_interrupt_*, test_a_closed_*, test_stop_* |
| wrong input is refused and harms nobody | test_*_is_refused |
"""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish
from tests.services.engines.conftest import (
    CONTEXT,
    FIRST_VERSION,
    PROMPT,
    SLOTS,
    VOCAB_SIZE,
    Case,
    joined,
    params,
    sample,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Running:
    """A request being read in the background, so that a test can act in the middle of it."""

    def __init__(self, case: Case, request_id: str = "bg", prompt: list[int] = PROMPT, **changes: object) -> None:
        self.chunks: list[Chunk] = []
        self._arrived = asyncio.Event()
        self.task = asyncio.create_task(self._read(case, request_id, prompt, changes))

    async def _read(self, case: Case, request_id: str, prompt: list[int], changes: dict[str, object]) -> None:
        async for chunk in case.engine.generate(request_id, prompt, params(**changes)):
            self.chunks.append(chunk)
            self._arrived.set()

    async def first_tokens(self) -> None:
        await asyncio.wait_for(self._arrived.wait(), 20)

    @property
    def num_tokens(self) -> int:
        return len(joined(self.chunks).ids)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_those_of_a_full_forward_at_the_same_temperature(case: Case, temperature: float) -> None:
    """The trainer recomputes them so; a gap here would bend every importance ratio."""
    answer = await sample(case.engine, temperature=temperature)

    assert answer.logprobs == pytest.approx(case.logprobs(PROMPT, answer.ids, temperature, False), abs=case.tolerance)


async def test_logprobs_ignore_top_p(case: Case) -> None:
    """They are taken before the nucleus is cut, so that they stay comparable with the trainer's. Who cannot, says so."""
    if not case.records(1.0, 0.3):
        with pytest.raises(BadInput, match="meaning"):
            await sample(case.engine, top_p=0.3)
        return
    answer = await sample(case.engine, top_p=0.3)

    assert answer.logprobs == pytest.approx(case.logprobs(PROMPT, answer.ids, 1.0, False), abs=case.tolerance)


async def test_a_tiny_top_p_leaves_only_the_best_token(case: Case) -> None:
    """The smallest nucleus is the greedy choice."""
    if not case.records(1.0, 1e-6):
        pytest.skip("refused: its logprobs would be of another meaning")
    assert (await sample(case.engine, top_p=1e-6)).ids == (await sample(case.engine, temperature=0.0)).ids


async def test_greedy_and_sampled_requests_run_side_by_side(case: Case) -> None:
    """Temperature belongs to a request: company must not change a greedy answer, nor make another one greedy."""
    alone = await sample(case.engine, temperature=0.0)
    greedy, *sampled = await asyncio.gather(
        sample(case.engine, request_id="g", temperature=0.0),
        *(sample(case.engine, request_id=f"s{seed}", seed=seed) for seed in range(3)),
    )

    assert greedy.ids == alone.ids
    assert greedy.logprobs == pytest.approx(case.logprobs(PROMPT, greedy.ids, 1.0, False), abs=case.tolerance)
    assert len({tuple(answer.ids) for answer in sampled}) == 3


async def test_a_seed_gives_the_same_answer_again(case: Case) -> None:
    """And one without a seed, or with another, does not repeat it."""
    once, again, other = [await sample(case.engine, seed=seed) for seed in (5, 5, 6)]

    assert once.ids == again.ids
    assert once.ids != other.ids


async def test_a_seeded_answer_continued_elsewhere_is_the_answer_it_would_have_been(case: Case) -> None:
    """A draw depends on seed and position only: handing a request over changes nothing."""
    whole = await sample(case.engine, max_tokens=12)
    rest = await sample(case.engine, prompt=PROMPT + whole.ids[:5], max_tokens=7)

    case.assert_same(whole.ids[:5] + rest.ids, whole.ids)


async def test_a_stop_token_is_the_last_token_reported(case: Case) -> None:
    """Sampled, reported with its logprob, and nothing after it."""
    whole = await sample(case.engine)
    stop = whole.ids[4]
    answer = await sample(case.engine, stop_token_ids=(VOCAB_SIZE - 1, stop))

    assert answer.ids == whole.ids[: whole.ids.index(stop) + 1]
    assert answer.finish == Finish.STOP


async def test_the_budget_is_exact(case: Case) -> None:
    """Neither one token less nor one more."""
    for max_tokens in (1, 2, 9):
        answer = await sample(case.engine, max_tokens=max_tokens)
        assert (len(answer.ids), answer.finish) == (max_tokens, Finish.LENGTH)


async def test_the_context_ends_a_request(case: Case) -> None:
    """Prompt and answer together fill the context to its last token."""
    answer = await sample(case.engine, prompt=PROMPT * 20, max_tokens=1000)

    assert (len(PROMPT * 20) + len(answer.ids), answer.finish) == (CONTEXT, Finish.LENGTH)


async def test_more_requests_than_slots_all_finish_and_do_not_mix(case: Case) -> None:
    """Requests of all lengths come and go; each one's logprobs are still those of its own text."""
    prompts = [[(7 * i + j * j) % VOCAB_SIZE for j in range(1 + 3 * i)] for i in range(3 * SLOTS)]
    answers = await asyncio.gather(
        *(sample(case.engine, prompt, f"r{i}", max_tokens=1 + (5 * i) % 11) for i, prompt in enumerate(prompts))
    )

    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert len(answer.ids) == 1 + (5 * i) % 11
        assert answer.logprobs == pytest.approx(case.logprobs(prompt, answer.ids, 1.0, False), abs=case.tolerance)


async def test_twins_and_shared_prefixes_give_exact_logprobs(case: Case) -> None:
    """A group samples one prompt many times and the next turn extends it: sharing caches must not show."""
    group = await asyncio.gather(*(sample(case.engine, request_id=f"r{s}", seed=s) for s in range(2 * SLOTS)))
    turns = [PROMPT + answer.ids + [9, 9] for answer in group]
    second = await asyncio.gather(*(sample(case.engine, turn, f"t{i}") for i, turn in enumerate(turns)))

    for prompt, answer in [*((PROMPT, a) for a in group), *zip(turns, second, strict=True)]:
        assert answer.logprobs == pytest.approx(case.logprobs(prompt, answer.ids, 1.0, False), abs=case.tolerance)


async def test_pause_reports_what_was_sampled_and_then_nothing_is(case: Case) -> None:
    """Pausing twice is the same as once; resuming goes on to the full budget."""
    running = Running(case, max_tokens=100)
    await running.first_tokens()
    await case.engine.pause()
    await case.engine.pause()
    for _ in range(5):
        await asyncio.sleep(0)
    frozen_at = running.num_tokens
    await asyncio.sleep(0.15)

    assert running.num_tokens == frozen_at < 100
    await case.engine.resume()
    await running.task
    assert running.num_tokens == 100


async def test_new_weights_in_the_middle_of_a_generation_are_stamped_from_the_next_token_on(case: Case) -> None:
    """The spans are exact: old version up to the pause, the new one after it, and no token lost or doubled."""
    running = Running(case, max_tokens=100)
    await running.first_tokens()
    await case.engine.pause()
    for _ in range(5):
        await asyncio.sleep(0)
    before = running.num_tokens
    await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    await running.task
    answer = joined(running.chunks)

    assert answer.versions == [FIRST_VERSION] * before + [FIRST_VERSION + 1] * (100 - before)
    assert 0 < before < 100
    assert case.engine.weights_version == FIRST_VERSION + 1
    old = case.logprobs(PROMPT, answer.ids[:before], 1.0, False)
    assert answer.logprobs[:before] == pytest.approx(old, abs=case.tolerance)


async def test_a_prompt_repeated_after_load_weights_is_computed_by_the_new_weights(case: Case) -> None:
    """A prefix cached under old weights must not serve a new request: its logprobs would be nobody's."""
    first = await sample(case.engine)
    await case.engine.pause()
    await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    again = await sample(case.engine)
    longer = await sample(case.engine, prompt=PROMPT + first.ids)

    assert set(again.versions) == {FIRST_VERSION + 1}
    assert again.logprobs == pytest.approx(case.logprobs(PROMPT, again.ids, 1.0, True), abs=case.tolerance)
    expected = case.logprobs(PROMPT + first.ids, longer.ids, 1.0, True)
    assert longer.logprobs == pytest.approx(expected, abs=case.tolerance)


async def test_a_request_that_ran_through_an_update_lends_its_cache_to_nobody(case: Case) -> None:
    """Half of its cache is of old weights, although it ended under new ones."""
    running = Running(case, max_tokens=60)
    await running.first_tokens()
    await case.engine.pause()
    await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    await running.task
    prompt = PROMPT + joined(running.chunks).ids
    answer = await sample(case.engine, prompt=prompt)

    assert answer.logprobs == pytest.approx(case.logprobs(prompt, answer.ids, 1.0, True), abs=case.tolerance)


async def test_weights_are_refused_unless_paused(case: Case) -> None:
    """In the middle of a pass a token would be drawn by half of each."""
    with pytest.raises(EngineError, match="pause"):
        await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)

    assert set((await sample(case.engine)).versions) == {FIRST_VERSION}


async def test_staged_weights_change_nothing_until_they_are_loaded(case: Case) -> None:
    """Sampling goes on while they are read; loading another file than the one staged loads that other one."""
    before = await sample(case.engine)
    await case.engine.stage_weights(case.other_weights)
    during = await sample(case.engine)
    await case.engine.stage_weights(case.first_weights)
    await case.engine.pause()
    await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    after = await sample(case.engine)

    assert (during.ids, during.versions) == (before.ids, before.versions)
    assert after.logprobs == pytest.approx(case.logprobs(PROMPT, after.ids, 1.0, True), abs=case.tolerance)


async def test_weights_that_do_not_fit_are_refused_before_anything_is_copied(case: Case) -> None:
    """By staging and by loading alike; each is named, the version stays, and what is sampled stays as it was."""
    before = await sample(case.engine)
    for bad in case.bad_weights:
        with pytest.raises(BadInput, match=r"(?i)nothing was (copied|loaded)"):
            await case.engine.stage_weights(bad)
    await case.engine.pause()
    for bad in case.bad_weights:
        with pytest.raises(BadInput, match=r"(?i)nothing was (copied|loaded)"):
            await case.engine.load_weights(bad, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    after = await sample(case.engine)

    assert (after.ids, after.versions) == (before.ids, before.versions)
    assert after.logprobs == pytest.approx(before.logprobs, abs=case.tolerance)


async def test_a_request_added_while_paused_waits_and_then_runs(case: Case) -> None:
    """Nothing is refused during an update, and the request belongs to the new weights from its first token."""
    await case.engine.pause()
    running = Running(case)
    await asyncio.sleep(0.1)
    assert running.num_tokens == 0
    await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    await running.task

    assert joined(running.chunks).versions == [FIRST_VERSION + 1] * 12


async def test_an_interrupt_reports_every_sampled_token_and_the_rest_can_be_sampled_elsewhere(case: Case) -> None:
    """The partial answer is a prefix of the whole one, with logprobs, and the budget that remains completes it."""
    whole = await sample(case.engine, max_tokens=100)
    running = Running(case, max_tokens=100)
    await running.first_tokens()
    await case.engine.interrupt("bg")
    await asyncio.wait_for(running.task, 10)
    partial = joined(running.chunks)
    rest = await sample(case.engine, prompt=PROMPT + partial.ids, max_tokens=100 - len(partial.ids))

    assert partial.finish == Finish.INTERRUPTED
    assert 0 < len(partial.ids) < 100
    ids = partial.ids + rest.ids
    case.assert_same(ids, whole.ids)
    assert partial.logprobs + rest.logprobs == pytest.approx(case.logprobs(PROMPT, ids, 1.0, False), abs=case.tolerance)


async def test_an_interrupt_of_one_leaves_its_neighbours_as_they_are(case: Case) -> None:
    """The first of several running requests ends; the others sample what they would have sampled alone."""
    whole = await sample(case.engine, max_tokens=100)
    running = [Running(case, f"r{i}", max_tokens=100) for i in range(SLOTS)]
    for each in running:
        await each.first_tokens()
    await case.engine.interrupt("r0")
    await asyncio.wait_for(asyncio.gather(*(r.task for r in running)), 20)

    assert joined(running[0].chunks).finish == Finish.INTERRUPTED
    assert all(joined(r.chunks).ids == whole.ids for r in running[1:])


async def test_an_interrupt_reaches_waiting_and_paused_requests_and_ignores_unknown_ones(case: Case) -> None:
    """A request without a slot, or frozen, ends at once; an id that never was changes nothing."""
    await case.engine.pause()
    running = [Running(case, f"r{i}") for i in range(SLOTS + 2)]
    await asyncio.sleep(0)
    for i in range(SLOTS + 2):
        await case.engine.interrupt(f"r{i}")
    await case.engine.interrupt("nobody")
    await asyncio.wait_for(asyncio.gather(*(r.task for r in running)), 10)

    assert [joined(r.chunks).finish for r in running] == [Finish.INTERRUPTED] * (SLOTS + 2)


async def test_a_closed_iterator_frees_its_slot_and_its_id(case: Case) -> None:
    """A caller that goes away must not leave its request sampling."""
    for _ in range(SLOTS + 1):
        stream = case.engine.generate("same", PROMPT, params(max_tokens=120))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    answer = await asyncio.wait_for(sample(case.engine, request_id="same"), 20)

    assert len(answer.ids) == 12


async def test_sleep_freezes_requests_and_wake_lets_them_go_on(case: Case) -> None:
    """Whatever memory was freed, the answer is the one it would have been."""
    whole = await sample(case.engine, max_tokens=100)
    running = Running(case, max_tokens=100)
    await running.first_tokens()
    await case.engine.sleep()
    await asyncio.sleep(0.05)
    asleep_at = running.num_tokens
    await case.engine.wake()
    await asyncio.wait_for(running.task, 20)

    assert asleep_at < 100
    case.assert_same(joined(running.chunks).ids, whole.ids)


async def test_stop_interrupts_and_start_serves_again_with_the_weights_of_the_folder(case: Case) -> None:
    """After a restart the version and the weights are the ones given to start."""
    before = await sample(case.engine)
    await case.engine.pause()
    await case.engine.load_weights(case.other_weights, weights_version=FIRST_VERSION + 1)
    await case.engine.resume()
    running = Running(case, max_tokens=110)
    await running.first_tokens()
    await case.engine.stop()
    await case.engine.stop()
    await asyncio.wait_for(running.task, 10)
    with pytest.raises(EngineError, match="not running"):
        await sample(case.engine)
    await case.start()  # type: ignore[misc]

    assert joined(running.chunks).finish == Finish.INTERRUPTED
    assert await sample(case.engine) == before


@pytest.mark.parametrize(
    ("prompt", "changes"),
    [
        ([], {}),
        ([1] * CONTEXT, {}),
        ([VOCAB_SIZE], {}),
        ([-1], {}),
        (PROMPT, {"max_tokens": 0}),
        (PROMPT, {"temperature": -0.1}),
        (PROMPT, {"top_p": 0.0}),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(case: Case, prompt: list[int], changes: dict[str, object]) -> None:
    """With BadInput, before anything is sampled, and the engine goes on for others."""
    with pytest.raises(BadInput):
        await sample(case.engine, prompt=prompt, **changes)

    assert len((await sample(case.engine)).ids) == 12


async def test_an_id_that_is_running_is_refused(case: Case) -> None:
    """Two requests of one name could not be told apart by interrupt."""
    running = Running(case, "twice", max_tokens=100)
    await running.first_tokens()
    with pytest.raises(BadInput, match="twice"):
        await sample(case.engine, request_id="twice")
    await running.task

    assert running.num_tokens == 100
