"""What tests of dying and leaving trainers share: when to die, what to learn from, and the accounts at the end. Not a test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from seamlessflow.bus.base import Message
from seamlessflow.contracts import GroupTrained, StepsCommitted, StepTaken, TrainerClaimed, TrainerStarted, WeightsPublished
from tests.services.trainer.trainer_world import World, by_index


def on_subject(ending: str, occurrence: int = 1) -> Callable[[Message], bool]:
    """True at the n-th message whose subject ends so."""
    seen = Counter[str]()

    def matches(message: Message) -> bool:
        if message.subject.endswith(ending):
            seen[ending] += 1
            return seen[ending] == occurrence
        return False

    return matches


async def feed(world: World, groups: list[str]) -> None:
    """All groups, by the first weights there are."""
    await world.hears(WeightsPublished)
    async with asyncio.timeout(20):
        while True:
            try:
                policy = await world.policy()
                break
            except AssertionError:  # published, and not yet the head
                await asyncio.sleep(0.02)
    for group in groups:
        await world.answer(group, by_index(), policy=policy)


async def until_all_is_acknowledged(world: World) -> None:
    async with asyncio.timeout(10):
        while await world.queued():
            await asyncio.sleep(0.02)


async def check_accounts(world: World, groups: list[str], *, num_steps: int) -> None:
    """Two groups a step: each group trained once and in one committed step, versions and lines without gaps."""
    trained = await world.heard(GroupTrained)
    assert sorted(g.group for g in trained) == sorted(groups)
    assert Counter(g.step for g in trained) == dict.fromkeys(range(1, num_steps + 1), 2)
    committed = {group for c in await world.heard(StepsCommitted) for group in c.groups}
    assert committed == set(groups)
    versions = [(p.weights_version, p.step) for p in await world.heard(WeightsPublished)]
    assert [version for version, _ in versions] == list(range(len(versions)))
    assert versions[-1][1] == num_steps
    assert (await world.head()).weights_version == versions[-1][0]
    claims = [claim.line for claim in await world.heard(TrainerClaimed)]
    assert claims == list(range(1, len(claims) + 1))
    lines = [s.line for s in await world.heard(TrainerStarted)]
    assert lines == sorted(set(lines) & set(claims))
    survived = {s.step: s for s in await world.heard(StepTaken)}  # the last taken of each number
    assert {g.group for g in trained} == {group for s in survived.values() for group in s.groups}
    assert all(g.group in survived[g.step].groups for g in trained)
