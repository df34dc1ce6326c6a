"""A small world around the scheduler: a journal, agents with their manager, and a trainer. Real rules, no bus, no clock.

Agents and trainer are folds that are fed every event of the journal and asked what is due; so they serve the pure
property tests (one event at a time, in any order a random source likes) and the service tests (over a bus) alike.
"""

from __future__ import annotations

from random import Random
from typing import Any

from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.contracts import (
    BatchReady,
    DropReason,
    EpisodeEnded,
    EpisodeEvaluated,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    EpisodeTokens,
    Event,
    Float32s,
    GroupAdmitted,
    GroupDropped,
    GroupTrained,
    Int32s,
    Sample,
    SamplesReady,
    SegmentSampled,
    StepsCommitted,
    StepTaken,
    TaskSubmitted,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
    is_final,
)
from seamlessflow.contracts.subjects import address

RUN = "r1"


def document(**sections: Any) -> dict[str, Any]:
    """A small run: 2 groups of 2 episodes a step, 3 steps; sections override."""
    algorithm = {"steps": 3, "groups_per_step": 2, "group_size": 2, "max_staleness": 1, **sections.pop("algorithm", {})}
    made = {
        "model": {"name": "tiny", "engine": "scripted"},
        "agents": [{"env": "single", "entrypoint": "a:b"}, {"env": "check", "entrypoint": "a:c"}],
        "algorithm": algorithm,
        "checkpoints": {"every_steps": 2},
        "evaluation": {"before": False, "after": False},
    }
    return {**made, **sections}


def config(**sections: Any) -> RunConfig:
    return parse_run_config(document(**sections))


def task(name: str, *, env: str = "single", evaluation: str | None = None, run: str = RUN) -> TaskSubmitted:
    return TaskSubmitted(run=run, task=name, env=env, prompt=f"do {name}", data={"n": 1}, evaluation=evaluation)


def tasks(prefix: str, count: int, **options: Any) -> list[TaskSubmitted]:
    return [task(f"{prefix}{number}", **options) for number in range(count)]


class Journal:
    """Stored events in order, with the once-rule and de-duplication of a real one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ids: set[str] = set()
        self._subjects: set[str] = set()

    def publish(self, event: Event) -> bool:
        """False: it may exist only once, or is known, and nothing was stored."""
        message = address(event)
        if message.message_id in self._ids or (message.expected_last_seq == 0 and message.subject in self._subjects):
            return False
        self._ids.add(message.message_id)
        self._subjects.add(message.subject)
        self.events.append(event)
        return True

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


class Agents:
    """agent-runner, worker and manager in one: each opened attempt samples some tokens, ends, and is judged."""

    def __init__(self, config: RunConfig, rng: Random, *, failing: float = 0.0) -> None:
        self.config, self.rng, self.failing = config, rng, failing
        self.running: dict[str, EpisodeOpened] = {}
        self.sampled: dict[str, int] = {}
        self.unjudged: dict[str, EpisodeEnded] = {}

    def feed(self, event: Event) -> None:
        if isinstance(event, EpisodeOpened):
            self.running[event.episode] = event
        elif isinstance(event, EpisodeEnded):
            self.running.pop(event.episode, None)
            self.unjudged[event.episode] = event
        elif isinstance(event, SamplesReady | EpisodeEvaluated):
            self.unjudged.pop(event.episode, None)

    def due(self) -> list[Event]:
        """The next thing that happens to one attempt; empty when nothing runs."""
        if self.unjudged and (not self.running or self.rng.random() < 0.5):
            return [self._judged(self.unjudged[self.rng.choice(sorted(self.unjudged))])]
        if not self.running:
            return []
        opened = self.running[self.rng.choice(sorted(self.running))]
        if opened.episode not in self.sampled:
            self.sampled[opened.episode] = count = self.rng.randint(0, 5)
            return [_segment(opened, count)] if count else []
        return [self._ended(opened)]

    def _ended(self, opened: EpisodeOpened) -> EpisodeEnded:
        failed = self.rng.random() < self.failing
        return EpisodeEnded(
            run=opened.run,
            episode=opened.episode,
            shard=opened.shard,
            origin=opened.origin,
            status=EpisodeStatus.AGENT_FAILED if failed else EpisodeStatus.COMPLETED,
            reward=None if failed else float(self.rng.randint(0, 1)),
        )

    def _judged(self, ended: EpisodeEnded) -> Event:
        count = self.sampled.get(ended.episode, 0)
        common = {"run": ended.run, "episode": ended.episode, "origin": ended.origin, "status": ended.status}
        if ended.origin.evaluation is not None:
            versions = (self.rng.randint(0, 1),)
            return EpisodeEvaluated(**common, reward=ended.reward, num_sampled=count, weights_versions=versions)
        seen = min(count, 4) if ended.status is EpisodeStatus.COMPLETED else 0
        published = {"num_sampled": count, "num_undelivered": count - seen}
        return SamplesReady(**common, reward=ended.reward, samples=(sample(seen),) if seen else (), **published)


class Trainer:
    """Assembles groups, steps, commits, and may lose what it did not commit."""

    def __init__(self, config: RunConfig, rng: Random, run: str = RUN) -> None:
        self.config, self.run, self.rng = config, run, rng
        self.line = self.step = self.committed_step = self.version = 0
        self.started = self.ended = self.batch_said = False
        self.sizes: dict[str, int] = {}
        self.members: dict[str, dict[int, SamplesReady]] = {}
        self.uncommitted: dict[int, list[str]] = {}
        self.closed: set[str] = set()
        self.end: TrainingEndRequested | None = None

    def feed(self, event: Event) -> None:
        if isinstance(event, GroupAdmitted) and event.evaluation is None:
            self.sizes[event.group] = event.num_episodes
        elif isinstance(event, SamplesReady) and is_final(event.status, event.origin.attempt, self.config.fleet.max_attempts):
            self.members.setdefault(event.origin.group, {})[event.origin.index] = event
        elif isinstance(event, GroupTrained | GroupDropped):
            self.closed.add(event.group)
        elif isinstance(event, TrainingEndRequested):
            self.end = event

    def crash(self) -> None:
        """Go back to the last checkpoint, on a new line."""
        self.started = self.batch_said = False
        self.step, self.uncommitted = self.committed_step, {}

    def due(self, *, has_device: bool = True) -> list[Event]:
        if self.ended:
            return []
        if not self.started:
            self.started = True
            self.line, self.version = self.line + 1, self.version + 1
            return [TrainerStarted(run=self.run, line=self.line, step=self.step, weights_version=self.version)]
        ready = self._ready()
        if (dropped := [group for group in ready if self._why_dropped(group)]) and (reason := self._why_dropped(dropped[0])):
            self.closed.add(dropped[0])
            return [GroupDropped(run=self.run, group=dropped[0], reason=reason)]
        wanted = self.config.algorithm.groups_per_step
        if self.end is not None and self.end.train_rest and ready:
            wanted = min(wanted, len(ready))
        is_over = self.step >= self.config.algorithm.steps or (self.end is not None and not self.end.train_rest)
        if not is_over and len(ready) >= wanted:
            return self._step(ready[:wanted], has_device)
        if is_over or (self.end is not None and not ready):
            return [*self._commit(), self._over()]
        return []

    def _step(self, groups: list[str], has_device: bool) -> list[Event]:
        if not self.batch_said:
            self.batch_said = True
            return [BatchReady(run=self.run, step=self.step + 1, line=self.line, num_groups=len(groups), num_tokens=1)]
        if not has_device:
            return []
        self.batch_said, self.step, self.version = False, self.step + 1, self.version + 1
        self.uncommitted[self.step] = groups
        taken = StepTaken(
            run=self.run, step=self.step, line=self.line, weights_version=self.version, groups=tuple(groups), metrics={}
        )
        return [taken, *(self._commit() if self.step % self.config.checkpoints.every_steps == 0 else [])]

    def _commit(self) -> list[Event]:
        published: list[Event] = []
        groups = [(step, group) for step, groups in self.uncommitted.items() for group in groups]
        if groups:
            self.committed_step = self.step
            names = tuple(group for _, group in groups)
            published = [GroupTrained(run=self.run, group=g, step=step, episodes=self._tokens(g)) for step, g in groups]
            published.append(StepsCommitted(run=self.run, step=self.step, line=self.line, checkpoint="c", groups=names))
            self.closed.update(names)
            self.uncommitted = {}
        return published

    def _over(self) -> TrainingEnded:
        self.ended = True
        return TrainingEnded(run=self.run, step=self.step, weights_version=self.version)

    def _ready(self) -> list[str]:
        used = {group for groups in self.uncommitted.values() for group in groups} | self.closed
        return [g for g, members in self.members.items() if g not in used and len(members) == self.sizes[g]]

    def _why_dropped(self, group: str) -> DropReason | None:
        rewards = [m.reward for m in self.members[group].values() if m.reward is not None]
        if len(rewards) < 2:
            return DropReason.FAILED
        return DropReason.ZERO_VARIANCE if len(set(rewards)) == 1 else None

    def _tokens(self, group: str) -> tuple[EpisodeTokens, ...]:
        done = [m for m in self.members[group].values() if m.status is EpisodeStatus.COMPLETED]
        made = []
        for member in done:
            count = sum(each.num_sampled for each in member.samples)
            old = self.rng.randint(0, count)
            made.append(EpisodeTokens(episode=member.episode, trained=count - old, masked={"stale": old} if old else {}))
        return tuple(made)


def sample(num_sampled: int) -> Sample:
    return Sample(
        token_ids=Int32s(range(num_sampled + 1)),
        spans=((1, num_sampled + 1),),
        logprobs=Float32s([0.0] * num_sampled),
        versions=((0, num_sampled),),
    )


def _segment(opened: EpisodeOpened, count: int) -> SegmentSampled:
    return SegmentSampled(
        run=opened.run,
        episode=opened.episode,
        generation=f"c-{opened.episode}",
        shard=opened.shard,
        nonce="n1",
        start=0,
        token_ids=Int32s(range(count)),
        logprobs=Float32s([0.0] * count),
        weights_version=0,
    )


def origin(group: str, index: int = 0, attempt: int = 0, evaluation: str | None = None) -> EpisodeOrigin:
    return EpisodeOrigin(
        group=group, task=group.removeprefix("g-"), env="single", index=index, attempt=attempt, evaluation=evaluation
    )
