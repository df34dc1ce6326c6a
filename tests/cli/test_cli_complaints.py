"""What goes wrong is seen while a run is followed, and does not flood the screen."""

from seamlessflow.cli.follow import AT_ONCE, EVERY_SECONDS, LINE_CHARACTERS, Complaints, brief
from seamlessflow.contracts import DeadLetter, EpisodeEnded, EpisodeOrigin, EpisodeStatus

ORIGIN = EpisodeOrigin(group="g", task="t", env="a", index=0, attempt=0)


def ended(status=EpisodeStatus.NOT_STARTED, reason="cannot import m:f"):
    return EpisodeEnded(run="r", episode="g-0-0", shard=0, origin=ORIGIN, status=status, reason=reason)


def test_a_failure_says_which_agent_and_why():
    """One line, whatever the traceback's length."""
    line = Complaints().line(ended(EpisodeStatus.AGENT_FAILED, "exit code 1\nTraceback:\n  deep\nValueError: no"), 0.0)

    assert line == "failed: episode g-0-0 (a): agent_failed: exit code 1 ... ValueError: no"


def test_a_dead_letter_says_whose():
    """The service, the subject and the reason."""
    letter = DeadLetter(run="r", service="trainer", letter="x", reason="bad", subject="sf.r.s", payload=b"")

    assert Complaints().line(letter, 0.0) == "dead letter: trainer cannot handle sf.r.s: bad"


def test_what_ends_well_or_with_the_run_is_no_complaint():
    """Neither is a step or a task."""
    complaints = Complaints()

    assert complaints.line(ended(EpisodeStatus.COMPLETED), 0.0) is None
    assert complaints.line(ended(EpisodeStatus.RUN_ENDED), 0.0) is None
    assert complaints.rest() is None


def test_a_flood_becomes_a_few_lines_and_a_count():
    """Nothing is shown twice and nothing is forgotten."""
    complaints = Complaints()
    shown = [line for _ in range(50) if (line := complaints.line(ended(), 0.0))]
    later = complaints.line(ended(), EVERY_SECONDS)

    assert len(shown) == AT_ONCE
    assert f"({50 - AT_ONCE} more since" in later
    assert complaints.rest() is None


def test_the_end_counts_what_was_never_shown():
    """So that the last ones are not lost."""
    complaints = Complaints()
    for _ in range(AT_ONCE + 2):
        complaints.line(ended(), 0.0)

    assert complaints.rest() == "failed: 2 more, not shown"


def test_a_reason_has_an_end():
    """However long it is, and even if there is none."""
    assert len(brief("x" * 10_000)) < LINE_CHARACTERS + 10
    assert brief(" \n") == "no reason was given"
