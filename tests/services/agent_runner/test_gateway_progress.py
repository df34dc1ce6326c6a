"""Hints of text: lost, late, double, in any order; what a stream says of them has no gap and no repetition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import AnswerDelta, CallAnswered
from seamlessflow_agent_runner.gateway.answer_wait import AnswerProgress, Unsent, texts_of


@st.composite
def hinted(draw: st.DrawFn) -> tuple[str, str, list[AnswerDelta]]:
    """Texts, and hints of parts of them in any order."""
    reasoning, content = draw(st.text(max_size=12)), draw(st.text(max_size=12))
    hints = []
    for _ in range(draw(st.integers(0, 8))):
        r, c = draw(st.integers(0, len(reasoning))), draw(st.integers(0, len(content)))
        p, q = draw(st.integers(r, len(reasoning))), draw(st.integers(c, len(content)))
        parts = {"reasoning_start": r, "reasoning": reasoning[r:p], "content_start": c, "content": content[c:q]}
        hints.append(AnswerDelta(run="r", episode="e", call="c", **parts))
    return reasoning, content, hints


@given(hinted())
def test_what_is_said_joins_to_the_answer(case: tuple[str, str, list[AnswerDelta]]) -> None:
    """Whatever was hinted: parts in order, and the whole answer behind them."""
    reasoning, content, hints = case
    progress, unsent, said = AnswerProgress(), Unsent(), []
    for hint in hints:
        progress.add(hint)
        said.append(unsent.take(progress.reasoning, progress.content))
    answer = CallAnswered(run="r", episode="e", call="c", message={"content": content, "reasoning_content": reasoning})

    assert unsent.fits(answer)
    said.append(unsent.take(*texts_of(answer)))
    assert ("".join(part for part, _ in said), "".join(part for _, part in said)) == (reasoning, content)


def test_a_text_that_differs_from_what_was_said_is_not_added_to_it() -> None:
    """It cannot be taken back; the log has it."""
    unsent = Unsent()
    unsent.take("", "seven")

    assert not unsent.fits(CallAnswered(run="r", episode="e", call="c", message={"content": "eight"}))
    assert unsent.take("", "eight") == ("", "")
