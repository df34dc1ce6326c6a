"""Journals of a fleet, in a few words: (time, event) pairs, and what the fold makes of them."""

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeOrigin,
    EpisodeStatus,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Role,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    RunEnded,
    RunStarted,
    Sampling,
    SegmentSampled,
    StepTaken,
    TrainerStarted,
    WeightsLoaded,
    WeightsPublished,
)
from seamlessflow.timeline import TimelineFold

WORKER, TRAINER = "rollout-worker", "trainer"


def started():
    return RunStarted(run="r", document={})


def ended():
    return RunEnded(run="r", reason="completed", steps=1)


def assigned(node, epoch, role, *, reason="", gang=(), left=False):
    return RoleAssigned(run="r", node=node, epoch=epoch, role=role, tags=(), reason=reason, gang=gang, left=left)


def taken(node, epoch, service=WORKER):
    return RoleTaken(run="r", node=node, epoch=epoch, service=service)


def released(node, epoch, service=WORKER, *, num_handed_back=0, num_frozen=0):
    return RoleReleased(
        run="r", node=node, epoch=epoch, service=service, num_handed_back=num_handed_back, num_frozen=num_frozen
    )


def loaded(worker, node="", *, version=0, pause=0.0):
    return WeightsLoaded(
        run="r", weights_version=version, worker=worker, node=node, fetch_seconds=0.0, pause_seconds=pause, num_frozen=0
    )


def published(version, step):
    return WeightsPublished(run="r", weights_version=version, step=step, path="p", num_bytes=1, wall_seconds=0.0)


def requested(generation, episode="e"):
    return GenerationRequested(
        run="r", episode=episode, generation=generation, tag="rollout", bucket=0, shard=0, suffix=[1], sampling=Sampling(),
        stop_token_ids=(), seed=0,
    )  # fmt: skip


def claimed(generation, worker, episode="e"):
    return GenerationClaimed(run="r", episode=episode, generation=generation, shard=0, worker=worker, nonce=worker, start=0)


def segment(generation, episode="e", *, finish=None, worker=None):
    return SegmentSampled(
        run="r", episode=episode, generation=generation, shard=0, nonce="n", start=0, token_ids=[1], logprobs=[-1.0],
        weights_version=0, finish=finish, worker=worker,
    )  # fmt: skip


def generation_ended(generation, episode="e"):
    finish = GenerationFinish.STOP
    return GenerationEnded(run="r", episode=episode, generation=generation, shard=0, nonce="n", finish=finish, num_tokens=1)


def episode_ended(episode="e"):
    origin = EpisodeOrigin(group="g", task="t", env="v", index=0, attempt=0)
    return EpisodeEnded(run="r", episode=episode, shard=0, origin=origin, status=EpisodeStatus.COMPLETED)


def batch_ready(step, line=1):
    return BatchReady(run="r", step=step, line=line, num_groups=1, num_tokens=1)


def step_taken(step, line=1, *, groups=(), **metrics):
    return StepTaken(run="r", step=step, line=line, weights_version=step, groups=groups, metrics=metrics)


def line_began(line, step=0):
    return TrainerStarted(run="r", line=line, step=step, weights_version=0)


def lanes_of(*journal):
    """Of (time, event) pairs, in the order given."""
    fold = TimelineFold()
    for time, event in journal:
        fold.apply(event, float(time))
    return fold.lanes("r")


def drawn(lanes, node):
    """A node's spans as a line of text: ``load 0-4, rollout 4-9``."""
    return ", ".join(f"{span.kind.value} {span.start:g}-{span.end:g}" for span in lanes.spans if span.node == node)


ROLLOUT, TRAIN, IDLE, SERVE = Role.ROLLOUT, Role.TRAIN, Role.IDLE, Role.SERVE
