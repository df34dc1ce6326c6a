"""What must be true of the journal of every run that a scheduler brought to an end."""

from __future__ import annotations

from seamlessflow.contracts import GroupAdmitted, GroupDropped, RoleAssigned, RunStarted, StepTaken
from seamlessflow.reports.ledger import Ledger
from tests.services.scheduler.scheduler_bench import Bench
from tests.services.scheduler.scheduler_world import RUN


async def check_the_history(bench: Bench, run: str = RUN) -> None:
    """What must be true of every run that ended in order, however it came there."""
    events = await bench.events(run)
    ledger = Ledger.of(events)
    assert ledger.balanced and not ledger.gaps, ledger
    assert ledger.episodes.in_flight == ledger.tokens.in_flight == 0
    assert isinstance(events[0], RunStarted)
    epochs: dict[str, int] = {}
    for event in events:
        if isinstance(event, RoleAssigned):
            assert event.epoch > epochs.get(event.node, 0)
            epochs[event.node] = event.epoch
    admitted = dropped = step = 0
    for event in events:
        admitted += isinstance(event, GroupAdmitted) and event.evaluation is None
        dropped += isinstance(event, GroupDropped)
        step = max(step, event.step) if isinstance(event, StepTaken) else step
        assert admitted - dropped <= (step + 1 + 1) * 2  # max_staleness 1, groups_per_step 2
