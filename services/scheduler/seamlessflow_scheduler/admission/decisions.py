"""The decisions of a run: which events the scheduler publishes next, given the run's progress. Pure and deterministic.

``next_events`` changes nothing. The caller publishes the events, applies those that were published, and asks again until
none is left. A scheduler that dies in between folds the journal, asks again, and publishes the rest.

    before ──▶ training ──▶ closing ──▶ after ──▶ RunEnded
                 └ held, while it waits for a person: nothing
       (stopping: from anywhere, straight to closing and RunEnded, without the round after)

A run stops on request, when its trainer cannot go on, and when too many groups in a row fail. It ends in order, with the
round after, when its steps are done, when tasks have ended, and when there is nothing left to learn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice

from seamlessflow.contracts import (
    DropReason,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    GroupAdmitted,
    GroupDropped,
    RunEnded,
    RunStopRequested,
    Sampling,
    TaskSubmitted,
    TrainingEndRequested,
)
from seamlessflow.contracts.tags import long_tag

from .evaluation_round import AFTER, BEFORE, EvaluationRound
from .open_group import episode_seed, group_id
from .run_state import RunProgress

FULL_SHARE = 0.8
"""Share of the journal's byte limit at which admission stops, so that what is in flight always fits."""
JOURNAL_FULL, TASKS_ENDED, COMPLETED, STOPPED = "journal_full", "tasks_ended", "completed", "stopped"
NOTHING_LEFT = "nothing_left_to_learn"


@dataclass(frozen=True, slots=True)
class Observation:
    """Inputs of a decision that are not in the journal."""

    journal_bytes: int = 0
    trainer_gone: bool = False
    """The run's trainer has been away for so long that a stop no longer waits for it."""


NOTHING = Observation()


def next_events(progress: RunProgress, seen: Observation = NOTHING, most: int | None = None) -> list[Event]:
    """Events to publish now, in order. Empty: wait for more. Events that close groups or the run need a claim (``closes``).

    most: at most so many groups or episodes; the rest is returned once these are applied.
    """
    if progress.ended is not None:
        return []
    if progress.is_stopping:
        return _stopping(progress, seen, most)
    if progress.is_held:
        return []
    if progress.training_ended is not None:
        return _closing(progress.open_training, progress, most) or _after(progress, seen, most)
    # Groups before openings: of all that there is room for the long ones are opened first, however small a slice is.
    opened = _admissions(progress, seen, most) or _openings(progress, most)
    return opened or _before(progress, most) or _training(progress, seen)


def closes(event: Event) -> bool:
    """Whether an event is part of closing the run, so that no trainer may commit any more when it is published."""
    if isinstance(event, EpisodeEnded):
        return event.origin.evaluation is None
    return isinstance(event, GroupDropped | RunEnded)


def admission_bound(progress: RunProgress) -> int:
    """How many training groups may be admitted and not dropped: ``(step + 1 + max_staleness) * groups_per_step``."""
    algorithm = progress.config.algorithm
    return (progress.steps.step + 1 + algorithm.max_staleness) * algorithm.groups_per_step


def is_full(progress: RunProgress, seen: Observation) -> bool:
    """Whether the journal is so full that nothing new is admitted."""
    limit = progress.config.fleet.journal_bytes
    return limit > 0 and seen.journal_bytes >= FULL_SHARE * limit


def _before_is_pending(progress: RunProgress) -> bool:
    held = progress.rounds[BEFORE]
    return progress.holds_round(BEFORE) and not held.over and held.has_tasks


def _before(progress: RunProgress, most: int | None) -> list[Event]:
    if not _before_is_pending(progress):
        return []
    # More tasks of the round may come until something else does: a training task, or the end of all tasks.
    may_end = bool(progress.waiting) or progress.tasks_ended
    return _round(progress, progress.rounds[BEFORE], most, may_end=may_end)


def _round(progress: RunProgress, held: EvaluationRound, most: int | None, *, may_end: bool) -> list[Event]:
    """Admit all known tasks of a round; end it when all are done."""
    if held.waiting:
        return _admitted(progress, islice(held.waiting.values(), most))
    return [held.ended(progress.run)] if held.is_done and may_end else []


def _admissions(progress: RunProgress, seen: Observation, most: int | None) -> list[Event]:
    """Admissions of the training groups that there is room for."""
    may_admit = progress.waiting and progress.end_requested is None and not _before_is_pending(progress)
    if not may_admit or progress.failures.failure_text(progress.config.algorithm) or _nothing_more(progress, seen):
        return []
    room = max(0, admission_bound(progress) - (progress.admitted - progress.dropped))
    return _admitted(progress, islice(progress.waiting.values(), room if most is None else min(room, most)))


def _nothing_more(progress: RunProgress, seen: Observation) -> bool:
    """Whether no group is admitted any more: what still runs may be worth a step, and then the run goes on."""
    return is_full(progress, seen) or progress.failures.nothing_left(progress.config.algorithm)


def _training(progress: RunProgress, seen: Observation) -> list[Event]:
    """The end of training, when it has come."""
    if progress.end_requested is not None or _before_is_pending(progress):
        return []
    if reason := progress.failures.failure_text(progress.config.algorithm):
        return [TrainingEndRequested(run=progress.run, reason=f"{STOPPED}: {reason}", train_rest=False)]
    nothing_comes = _nothing_more(progress, seen) or (progress.tasks_ended and not progress.waiting)
    too_few = progress.potential < progress.config.algorithm.groups_per_step
    if nothing_comes and too_few and progress.num_unfinished == 0:
        learned = progress.failures.nothing_left(progress.config.algorithm)
        reason = JOURNAL_FULL if is_full(progress, seen) else NOTHING_LEFT if learned else TASKS_ENDED
        return [TrainingEndRequested(run=progress.run, reason=reason, train_rest=True)]
    return []


def _after(progress: RunProgress, seen: Observation, most: int | None) -> list[Event]:
    held = progress.rounds[AFTER]
    if progress.holds_round(AFTER) and not held.over and held.has_tasks and not (is_full(progress, seen) and held.waiting):
        return _openings(progress, most) or _round(progress, held, most, may_end=True)
    return _closing(progress.open_evaluation, progress, most) or [_run_ended(progress)]


def _stopping(progress: RunProgress, seen: Observation, most: int | None) -> list[Event]:
    if progress.open_evaluation:
        return _ended_by_run(progress, progress.open_evaluation, most)
    # Without a trainer there is nothing to commit: one that never started, or one that stays away. Once a scheduler closes the
    # run no trainer commits any more, whether or not one is there.
    is_over = progress.training_ended is not None or progress.history.is_closing or progress.is_held
    if not (is_over or progress.steps.line is None or seen.trainer_gone):
        asked = progress.end_requested is not None
        return [] if asked else [TrainingEndRequested(run=progress.run, reason=_stop_reason(progress.stop), train_rest=False)]
    return _closing(progress.open_training, progress, most) or [_run_ended(progress)]


def _closing(episodes: dict[str, EpisodeOrigin], progress: RunProgress, most: int | None) -> list[Event]:
    """End what still runs, then close the training groups that are still open."""
    if episodes:
        return _ended_by_run(progress, episodes, most)
    still_open = (name for name, group in progress.groups.items() if group.evaluation is None)
    return [GroupDropped(run=progress.run, group=name, reason=DropReason.RUN_ENDED) for name in islice(still_open, most)]


def _openings(progress: RunProgress, most: int | None) -> list[Event]:
    """Openings of owed attempts, long ones first: shorter ones fill the gaps that they leave."""
    owed = chain(progress.owed_long.items(), progress.owed.items())
    return [_opened(progress, episode, origin) for episode, origin in islice(owed, most)]


def _admitted(progress: RunProgress, tasks: Iterable[TaskSubmitted]) -> list[Event]:
    """Each task's group, in the affinity bucket with the fewest unfinished groups; a long one, with the fewest long ones."""
    loads, long_loads, events = list(progress.bucket_loads), list(progress.long_loads), list[Event]()
    for task in tasks:
        is_long = progress.lengths.is_long(task)
        order = list(zip(long_loads, loads, strict=True)) if is_long else loads
        bucket = min(range(len(loads)), key=order.__getitem__)
        loads[bucket] += 1
        long_loads[bucket] += is_long
        events.append(
            GroupAdmitted(
                run=progress.run,
                group=group_id(task.task),
                task=task.task,
                env=task.env,
                num_episodes=progress.config.algorithm.group_size if task.evaluation is None else 1,
                evaluation=task.evaluation,
                step=progress.steps.step,
                bucket=bucket,
                expected_tokens=progress.lengths.expected(task),
                long=is_long,
            )
        )
    return events


def _opened(progress: RunProgress, episode: str, origin: EpisodeOrigin) -> EpisodeOpened:
    config, group = progress.config, progress.groups[origin.group]
    task = group.task
    is_after = origin.evaluation == AFTER and progress.training_ended is not None
    return EpisodeOpened(
        run=progress.run,
        episode=episode,
        origin=origin,
        shard=config.shard_of(episode),
        bucket=progress.calls.bucket(origin.env, group.bucket, config.fleet.buckets),
        env=origin.env,
        prompt=task.prompt,
        data=task.data,
        sampling=_sampling(progress, greedy=origin.evaluation is not None),
        tag=long_tag(_tag(progress, origin.env)) if group.is_long else _tag(progress, origin.env),
        min_weights_version=progress.training_ended.weights_version if is_after and progress.training_ended else 0,
        seed=episode_seed(config.seed, episode),
        expected_tokens=group.expected_tokens,
    )


def _tag(progress: RunProgress, env: str) -> str:
    agent = progress.config.agent(env)
    assert agent is not None, "a task for an environment that no agent has is refused"
    return agent.tag


def _sampling(progress: RunProgress, *, greedy: bool) -> Sampling:
    asked = progress.config.sampling
    if greedy:
        return Sampling(temperature=0.0, top_p=1.0, max_tokens=asked.max_tokens)
    return Sampling(temperature=asked.temperature, top_p=asked.top_p, max_tokens=asked.max_tokens)


def _ended_by_run(progress: RunProgress, episodes: dict[str, EpisodeOrigin], most: int | None) -> list[Event]:
    reason = "the run was stopped" if progress.is_stopping else "training ended"
    return [
        EpisodeEnded(
            run=progress.run,
            episode=episode,
            shard=progress.config.shard_of(episode),
            origin=origin,
            status=EpisodeStatus.RUN_ENDED,
            reason=reason,
        )
        for episode, origin in islice(episodes.items(), most)
    ]


def _run_ended(progress: RunProgress) -> RunEnded:
    steps = progress.training_ended.step if progress.training_ended is not None else progress.committed_step
    return RunEnded(run=progress.run, reason=_end_reason(progress, steps), steps=steps)


def _end_reason(progress: RunProgress, steps: int) -> str:
    asked = progress.end_requested
    if progress.training_ended is not None and progress.training_ended.failure:
        return progress.training_ended.failure
    if asked is not None and not asked.train_rest:
        return asked.reason
    if progress.stop is not None:
        return _stop_reason(progress.stop)
    return COMPLETED if asked is None or steps >= progress.config.algorithm.steps else asked.reason


def _stop_reason(stop: RunStopRequested | None) -> str:
    """The reason of a stop request, such as a trainer's failure; without one, a person asked for it."""
    return STOPPED if stop is None or stop.reason == RunStopRequested.model_fields["reason"].default else stop.reason
