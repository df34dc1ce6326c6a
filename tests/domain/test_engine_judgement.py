"""The verdicts of an engine's self-check: each fault is told by the check that is for it, and by no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seamlessflow.engine_check import EngineReport, GapFigures, Sampled, TrainerReport, all_right, judge, likeness

FEW, MANY = GapFigures(mean=0.01, largest=0.1, num_tokens=8), GapFigures(mean=0.6, largest=3.0, num_tokens=8)


def said(tokens: tuple[int, ...] = (1, 2, 3, 4), *, logprob: float = -1.0, versions: tuple[int, ...] | None = None) -> Sampled:
    return Sampled(
        prompt=(7, 8),
        tokens=tokens,
        logprobs=(logprob,) * len(tokens),
        versions=versions or (1,) * len(tokens),
        finish="length",
    )


def engine(**changed: object) -> EngineReport:
    """A faultless one."""
    facts = {
        "first": (said(),),
        "interrupted": (said(versions=(2, 2, 3, 3)),),
        "again": (said(),),
        "other": (said((1, 9, 9, 9), logprob=-2.0),),
        "other_fresh": (said((1, 9, 9, 9), logprob=-2.0),),
        "drawn": (said(versions=(1, 1, 2, 2)), said(versions=(1, 1, 1, 1))),
        "num_before": (2, 4),
        "num_while_paused": 0,
        "drawn_versions": (1, 2),
        "start_seconds": 1.0,
        "stage_seconds": 0.1,
        "pause_seconds": 0.1,
        "dtype": "bfloat16",
    }
    return EngineReport.model_validate(facts | changed)


def trainer(**changed: object) -> TrainerReport:
    facts = {"drawn": FEW, "greedy": FEW, "greedy_of_other": FEW, "stale": MANY, "num_tensors": 9, "num_changed": 0}
    return TrainerReport.model_validate(facts | {"dtype": "bfloat16"} | changed)


def test_a_faultless_engine_is_all_right_and_every_line_has_a_number():
    """What is only told is neither right nor wrong."""
    checks = judge(engine(), trainer())

    assert all_right(checks)
    assert all(any(letter.isdigit() for letter in check.found) for check in checks)
    assert [check.name for check in checks if check.is_right is None] == [
        "started in", "update: read ahead", "update: pause",
    ]  # fmt: skip


FAULTS: list[tuple[str, Callable[[], tuple[EngineReport, TrainerReport]]]] = [
    ("logprobs against the trainer's, greedy", lambda: (engine(), trainer(greedy=MANY))),
    ("logprobs against the trainer's, drawn at a temperature", lambda: (engine(), trainer(drawn=MANY))),
    ("logprobs against the trainer's, after an update to other weights", lambda: (engine(), trainer(greedy_of_other=MANY))),
    ("what an engine with other weights would show", lambda: (engine(), trainer(stale=FEW))),
    ("a step at learning rate 0", lambda: (engine(), trainer(num_changed=1))),
    ("tokens sampled while paused", lambda: (engine(num_while_paused=1), trainer())),
    ("generations that an update in their middle ended", lambda: (cut_short(), trainer())),
    ("generations whose tokens have the version that drew them", lambda: (engine(num_before=(3, 4)), trainer())),
    ("same weights published again in the middle", lambda: (other_token_after_an_update(), trainer())),
    ("other weights, updated to against freshly loaded", lambda: (engine(other=(said((1, 9, 8, 9), logprob=-2),)), trainer())),
    ("first weights, updated back to", lambda: (engine(again=(said(logprob=-1.2),)), trainer())),
    ("other weights are told from the first ones", lambda: (same_everywhere(), trainer())),
]


def cut_short() -> EngineReport:
    drawn = (said(versions=(1, 1, 2, 2)), said((1, 2), versions=(1, 1)).model_copy(update={"finish": "interrupted"}))
    return engine(drawn=drawn, num_before=(2, 2))


def other_token_after_an_update() -> EngineReport:
    return engine(interrupted=(said((1, 2, 3, 5), versions=(2, 2, 3, 3)),))


def same_everywhere() -> EngineReport:
    return engine(other=(said(),), other_fresh=(said(),))


@pytest.mark.parametrize(("name", "reports"), FAULTS, ids=[name for name, _ in FAULTS])
def test_a_fault_is_told_by_its_own_check_alone(name, reports):
    """The others stay right, so that the table says what is wrong."""
    wrong = [check.name for check in judge(*reports()) if check.is_right is False]

    assert len(wrong) == 1 and wrong[0].startswith(name)


def test_an_update_that_met_no_generation_in_its_middle_shows_nothing():
    """All had ended, or none had begun: then exact versions prove nothing."""
    report = engine(drawn=(said(),), num_before=(4,))

    assert not all_right(judge(report, trainer()))
    assert not all_right(judge(engine(interrupted=(said(),)), trainer()))


def test_likeness_stops_at_the_first_different_token():
    """Behind it the contexts differ, and so may everything."""
    left, right = said((1, 2, 3, 4)), said((1, 2, 9, 4), logprob=-1.5)

    found = likeness([left], [right])

    assert (found.num_tokens, found.num_same, found.largest, found.mean) == (4, 2, 0.5, 0.5)
    assert likeness([left], [said((1, 2))]).num_same == 2
    with pytest.raises(ValueError, match="shorter"):
        likeness([left], [])


@pytest.mark.parametrize("place", [0, 3])
def test_a_logprob_that_is_not_a_number_travels_and_is_wrong_wherever_it_stands(place: int):
    """Both processes write JSON; and not a number is neither above nor below what is allowed."""
    logprobs = tuple(float("nan") if number == place else -1.0 for number in range(4))
    broken = said().model_copy(update={"logprobs": logprobs})
    told = EngineReport.model_validate_json(engine(again=(broken,)).model_dump_json())

    assert [check.name for check in judge(told, trainer()) if check.is_right is False] == [
        "first weights, updated back to against freshly loaded"
    ]
