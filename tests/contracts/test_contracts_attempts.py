"""How often an episode is tried: one rule for scheduler and trainer, whatever happens to the attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStatus, SamplesReady, TaskSubmitted, is_final
from seamlessflow.contracts.episodes import MAX_LOST_ATTEMPTS
from seamlessflow_scheduler.admission.decisions import next_events
from seamlessflow_scheduler.admission.run_state import RunProgress
from seamlessflow_trainer.data.groups import GroupBook

STATUSES = st.lists(st.sampled_from(EpisodeStatus), min_size=25, max_size=25)


@given(STATUSES, st.integers(1, 14))
def test_every_sequence_of_endings_has_one_final_attempt(statuses: list[EpisodeStatus], max_attempts: int) -> None:
    """Losses alone never use up what an agent's failures may; nothing is tried for ever."""
    finals = [is_final(status, attempt, max_attempts) for attempt, status in enumerate(statuses)]
    last = finals.index(True)

    assert last < max(max_attempts, MAX_LOST_ATTEMPTS)
    if statuses[last] is EpisodeStatus.RUNNER_LOST:
        assert last + 1 == max(max_attempts, MAX_LOST_ATTEMPTS)
    elif statuses[last] not in (EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED):
        assert last + 1 >= max_attempts


@given(STATUSES, st.integers(1, 14))
def test_scheduler_and_trainer_agree_on_every_sequence(statuses: list[EpisodeStatus], max_attempts: int) -> None:
    """The trainer wants the samples of exactly the attempt that the scheduler follows with no other."""
    config = parse_run_config(
        {
            "model": {"name": "tiny"},
            "agents": [{"env": "sums", "command": ["true"]}],
            "algorithm": {"steps": 1, "group_size": 2, "groups_per_step": 1},
            "fleet": {"max_attempts": max_attempts},
            "evaluation": {"before": False, "after": False},
        }
    )
    progress = RunProgress("r", config)
    book = GroupBook(group_size=2, max_attempts=max_attempts, drop_zero_variance=False)
    progress.apply(TaskSubmitted(run="r", task="t", env="sums", prompt="p"))
    opened = first_member(said(progress))
    num_wanted = 0
    for status in statuses:
        assert num_wanted == 0 and opened is not None
        ended = {"run": "r", "episode": opened.episode, "shard": 0, "origin": opened.origin, "status": status}
        samples = SamplesReady(
            run="r", episode=opened.episode, origin=opened.origin, status=status, reward=None, num_sampled=0
        )  # fmt: skip
        num_wanted += book.wants(samples)
        progress.apply(EpisodeEnded(**ended))
        opened = first_member(said(progress))
        assert (opened is None) == (num_wanted == 1)
        if opened is None:
            break
    assert num_wanted == 1


def said(progress: RunProgress) -> list[object]:
    """What the scheduler says now; it is told its own words, as the journal tells it."""
    events = []
    while new := next_events(progress):
        for event in new:
            progress.apply(event)
        events += new
    return events


def first_member(events: list[object]) -> EpisodeOpened | None:
    """The attempt of member 0 that was opened, if any."""
    return next((e for e in events if isinstance(e, EpisodeOpened) and e.origin.index == 0), None)
