"""The optimiser steps of an incarnation, one at a time.

    groups ─▶ BatchReady ─▶ device ─▶ learn ─▶ weights published ─▶ StepTaken

A batch that cannot be trained (not finite, or of another incarnation's versions) stops the run with a reason; the weights stay
as they were, and no further step begins. After ``stop`` no further step begins either: one in progress is abandoned between
two micro-batches, or published when it is past the last of them.

With ``algorithm.begin_share`` below 1 a step begins before its batch is complete: groups that become ready while it learns are
fed to it, and later ones are left for the next step.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

import structlog

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import BatchReady, DropReason, StepTaken
from seamlessflow.errors import BadInput, SeamlessFlowError
from seamlessflow.runtime import Context
from seamlessflow_trainer.blocking_work import in_thread
from seamlessflow_trainer.data.batch import TrainingBatch, is_stale, joined_batch, make_batch
from seamlessflow_trainer.data.batch_feed import BatchFeed
from seamlessflow_trainer.data.groups import TrainingGroup
from seamlessflow_trainer.data.sample_queue import SampleQueue
from seamlessflow_trainer.device_turn import DeviceTurn
from seamlessflow_trainer.learner.base import Abandoned, NotFinite, StepFigures
from seamlessflow_trainer.learner.learner import learning_rate_at
from seamlessflow_trainer.reporting import report_failure, set_state
from seamlessflow_trainer.run_start import RunStart

from .logprob_gap_alarm import GapAlarm
from .step_commits import StepCommitter

log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""Interval at which a trainer that waits for groups checks whether a reader cannot load the newest weights."""
REST_SECONDS = 60.0
"""How long a step that began early waits for one more group: perhaps no node samples while the trainer has the device."""
SHOWN = ("reward", "loss", "grad_norm", "logprob_gap", "trained_tokens", "seconds_wait", "seconds_train")
"""Metrics in the log line of a step; StepTaken has them all."""


@dataclass(slots=True)
class StepState:
    """The learner's state: exactly at a step, or between two. ``step``: optimiser steps taken and published. Pure.

        exactly at n ──begin──▶ between ──weights of n + 1 and StepTaken published──▶ exactly at n + 1
                                   └────────abandoned, nothing was changed────────▶ exactly at n

    A checkpoint is written only of a learner that is exactly at a step: the content of any other is undefined.
    """

    step: int
    _is_between: bool = False

    @property
    def exact(self) -> int | None:
        """The step that the learner is exactly at. None: a step began, and was neither taken nor undone."""
        return None if self._is_between else self.step

    def begin(self) -> None:
        """From here on the learner may change."""
        self._is_between = True

    def undone(self) -> None:
        """The step was abandoned before anything was changed."""
        self._is_between = False

    def taken(self) -> None:
        """The step that began is learned, its weights and StepTaken are published."""
        assert self._is_between, "a step was taken that never began"
        self.step += 1
        self._is_between = False


def step_to_commit(step_state: StepState, *, committed_step: int) -> int | None:
    """The step to commit before leaving; None: no step is uncommitted, or the learner is between two steps."""
    if step_state.exact is None or step_state.exact <= committed_step:
        return None
    return step_state.exact


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step, by phase."""

    wait: float
    """Waiting for samples and for the device, since the step before."""
    train: float
    publish: float


def step_metrics(
    batch: TrainingBatch,
    figures: StepFigures,
    times: StepTimes,
    *,
    learning_rate: float,
    dropped_rewards: Sequence[tuple[str, float]],
) -> dict[str, float]:
    """StepTaken.metrics by name; docs/operations.md has the table of units. Pure.

    dropped_rewards: environment and reward of members whose groups were dropped because all rewards were equal. They count in
    the mean reward, which would otherwise stop growing just when whole groups succeed.
    """
    metrics = {
        **_reward_metrics(batch, dropped_rewards),
        "loss": figures.loss,
        "grad_norm": figures.grad_norm,
        "learning_rate": learning_rate,
        "staleness_mean": sum(age * count for age, count in batch.ages.items()) / max(1, batch.num_sampled),
        "staleness_max": float(max(batch.ages, default=0)),
        "trained_tokens": float(batch.num_trained),
        "masked_tokens": float(batch.num_masked),
        "completion_tokens": fmean(member.num_sampled for group in batch.groups for member in group.members),
        "num_groups": float(len(batch.groups)),
        "seconds_wait": times.wait,
        "seconds_train": times.train,
        "seconds_publish": times.publish,
    }
    if figures.num_computed:
        metrics |= {"importance_ratio": figures.importance_ratio, "truncated_fraction": figures.truncated_fraction}
    if figures.logprob_gap is not None:
        metrics["logprob_gap"] = figures.logprob_gap
    return metrics


def _reward_metrics(batch: TrainingBatch, dropped_rewards: Sequence[tuple[str, float]]) -> dict[str, float]:
    rewards = [(group.env, reward) for group in batch.groups for reward in group.rewards] + list(dropped_rewards)
    by_env: dict[str, list[float]] = {}
    for env, reward in rewards:
        by_env.setdefault(env, []).append(reward)
    return {"reward": fmean(r for _, r in rewards), **{f"reward/{env}": fmean(rs) for env, rs in by_env.items()}}


class StepRunner:
    """Takes the steps of one incarnation. ``step_state`` is the learner's; ``committer`` records the groups of each step."""

    def __init__(
        self,
        context: Context,
        run: str,
        config: RunConfig,
        start: RunStart,
        sample_queue: SampleQueue,
        committer: StepCommitter,
        device: DeviceTurn,
    ) -> None:
        self._context, self._run, self._config, self._device = context, run, config, device
        self._start, self._sample_queue, self._committer = start, sample_queue, committer
        self._stopped = threading.Event()
        self._failed = False
        self._last_step_at = time.monotonic()
        self.step_state = StepState(start.step)
        self._gap_alarm = GapAlarm(context.journal, run, config, start.dtype)

    def stop(self) -> None:
        """No further step begins; one in progress is taken or abandoned soon. Idempotent."""
        self._stopped.set()
        self._sample_queue.stop_now.set()
        self._sample_queue.changed.set()

    async def next_groups(self) -> list[TrainingGroup]:
        """The groups with which the next step begins, taken from the book; empty when there will be no further step."""
        set_state(self._context, self._run, f"waiting for groups for step {self.step_state.step + 1}")
        sample_queue, algorithm = self._sample_queue, self._config.algorithm
        wanted, enough = algorithm.groups_per_step, math.ceil(algorithm.begin_share * algorithm.groups_per_step)
        while True:
            sample_queue.changed.clear()
            if self._is_over:
                return []
            ready = [] if self._failed else await self._fresh()
            if len(ready) >= enough or sample_queue.end is not None:
                sample_queue.book.take(ready[:wanted])
                return ready[:wanted]
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Wait until samples change. Meanwhile publish in full for a reader that cannot load the newest weights: without it
        there might be no further group."""
        changed, publisher = self._sample_queue.changed, self._start.publisher
        while not changed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await changed.wait()
                return
            if not self._failed and self.step_state.exact is not None and await publisher.is_full_version_requested():
                step, weights = self.step_state.step, self._start.learner.weights()
                published = await publisher.publish(weights, step=step, epoch=self._device.epoch, in_full=True)
                log.info("weights.published_again", run=self._run, step=step, weights_version=published.weights_version)
                await self._collect()

    @property
    def _is_over(self) -> bool:
        """Whether no further step is wanted."""
        end = self._sample_queue.end
        return self._stopped.is_set() or (end is not None and (self._failed or not end.train_rest))

    async def _fresh(self) -> list[TrainingGroup]:
        """Ready groups, after dropping those whose tokens are all too old."""
        bound, book, step = self._config.algorithm.max_staleness, self._sample_queue.book, self.step_state.step
        try:
            stale = [g.group for g in book.ready if is_stale(g, self._start.steps, step, max_staleness=bound)]
        except BadInput as wrong:
            await self._fail(str(wrong))
            return []
        await self._sample_queue.drop(stale, DropReason.STALE)
        return book.ready

    async def take(self, groups: list[TrainingGroup]) -> bool:
        """Take a step that begins with some groups. False: it was not taken, and its groups are ready again."""
        taken = list(groups)
        try:
            done = await self._take(await self._batch(groups), taken)
        except (BadInput, NotFinite, ValueError) as wrong:
            await self._fail(str(wrong))
            if self.step_state.exact is None:
                raise  # learned and not published: the learner's step is undefined, and the run is stopped
            done = False
        if not done:
            self._sample_queue.book.put_back(taken)
        return done

    async def _batch(self, groups: list[TrainingGroup]) -> TrainingBatch:
        """The batch of some groups as of now; it does not change during a step. Made in a thread: it may have millions of
        tokens."""
        version = self._start.publisher.weights_version
        return await in_thread(make_batch, groups, self._start.steps, self.step_state.step, version, self._config.algorithm)

    async def _take(self, batch: TrainingBatch, taken: list[TrainingGroup]) -> bool:
        """``taken`` grows by the groups that become ready in time."""
        step = self.step_state.step + 1
        num_groups, num_tokens = len(batch.groups), batch.num_sampled
        await self._context.journal.publish(
            BatchReady(run=self._run, step=step, line=self._start.line, num_groups=num_groups, num_tokens=num_tokens)
        )
        set_state(self._context, self._run, f"waiting for the device for step {step}")
        async with self._device.held(self._sample_queue.stop_now) as ours:
            done = ours and await self._learn(batch, taken, step)
        await self._collect()
        return done

    async def _collect(self) -> None:
        """Remove old versions. Where the store is unavailable they only take up space: the next step tries again."""
        try:
            await self._start.publisher.collect()
        except SeamlessFlowError as wrong:
            log.warning("weights.not_collected", run=self._run, reason=str(wrong))

    async def _learn(self, first: TrainingBatch, taken: list[TrainingGroup], step: int) -> bool:
        """Learn and publish. False: the step was abandoned."""
        set_state(self._context, self._run, f"taking step {step}")
        began, rate, learner = time.monotonic(), learning_rate_at(step, self._config.algorithm), self._start.learner
        num_nodes, should_stop = self._device.num_nodes, self._stopped.is_set
        parts, feed = [first], BatchFeed()
        feed.put(first)
        self.step_state.begin()
        feeding = asyncio.create_task(self._feed_rest(feed, parts, taken))
        try:
            figures = await in_thread(
                learner.train_parts, feed, learning_rate=rate, num_nodes=num_nodes, should_stop=should_stop
            )
        except Abandoned:
            self.step_state.undone()
            log.info("step.given_up", step=step)
            if feeding.done() and not feeding.cancelled() and (wrong := feeding.exception()) is not None:
                raise wrong from None
            return False
        except (BadInput, NotFinite, ValueError):
            self.step_state.undone()
            raise
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        batch, learned, trained_version = joined_batch(parts), time.monotonic(), self._start.publisher.weights_version
        published = await self._start.publisher.publish(learner.weights(), step=step, epoch=self._device.epoch)
        times = StepTimes(began - self._last_step_at, learned - began, time.monotonic() - learned)
        gap_metrics = await self._gap_alarm.judge(batch, figures, step=step, weights_version=trained_version)
        await self._publish_step(batch, step, figures, times, rate, published.weights_version, gap_metrics)
        self._committer.add(batch, step)
        self.step_state.taken()
        self._last_step_at = time.monotonic()
        return True

    async def _feed_rest(self, feed: BatchFeed, parts: list[TrainingBatch], taken: list[TrainingGroup]) -> None:
        """Feed groups until the batch is complete, no further group comes, or the device is recalled."""
        sample_queue, wanted = self._sample_queue, self._config.algorithm.groups_per_step
        try:
            while len(taken) < wanted:
                sample_queue.changed.clear()
                more = [] if self._is_over or self._failed else (await self._fresh())[: wanted - len(taken)]
                if self._is_over or self._failed:
                    feed.give_up()
                    return
                if more:
                    sample_queue.book.take(more)
                    taken += more
                    parts.append(await self._batch(more))
                    feed.put(parts[-1])
                elif sample_queue.end is not None or not await self._more_may_come():
                    break
            feed.end()
        except BaseException:
            feed.give_up()
            raise

    async def _more_may_come(self) -> bool:
        """Wait until samples change. False: take the step without further groups, as none came for long, no other node samples,
        or the device is recalled."""
        if not self._device.others_sample:
            return False
        waits = [asyncio.create_task(event.wait()) for event in (self._sample_queue.changed, self._device.recalled)]
        try:
            done, _ = await asyncio.wait(waits, timeout=REST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return waits[0] in done

    async def _publish_step(
        self,
        batch: TrainingBatch,
        step: int,
        figures: StepFigures,
        times: StepTimes,
        learning_rate: float,
        weights_version: int,
        gap_metrics: Mapping[str, float],
    ) -> None:
        dropped, self._sample_queue.judged_rewards = self._sample_queue.judged_rewards, []
        metrics = step_metrics(batch, figures, times, learning_rate=learning_rate, dropped_rewards=dropped) | dict(gap_metrics)
        await self._context.journal.publish(
            StepTaken(
                run=self._run,
                step=step,
                line=self._start.line,
                weights_version=weights_version,
                groups=tuple(group.group for group in batch.groups),
                metrics=metrics,
            )
        )
        log.info("step.taken", step=step, **{name: round(metrics[name], 4) for name in SHOWN if name in metrics})

    async def _fail(self, reason: str) -> None:
        self._failed = True
        await report_failure(self._context, self._start.claim, self._run, reason)
